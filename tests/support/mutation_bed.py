"""Where mutants meet the tests: a copy of the checkout, and pytest in forks of a process that has loaded torch."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pandas  # noqa: F401  loaded here once, as are the next two: a fork then starts in a second
import pytest
import scipy.stats  # noqa: F401
import torch
import transformers  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = 60.0
"""Seconds that a test is supposed to take before it was ever timed."""

MEMORY = 4 * 2**30
"""Bytes that a mutant may take: one with a wrong exponent asks for all there are."""

torch.set_num_threads(1)  # a fork has no other threads


class Watch:
    """A pytest plugin that says which test begins and which fails. Of a failure one example is enough."""

    def __init__(self, tell: Connection) -> None:
        self.tell = tell

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("unshrunk", settings.get_profile("project"), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("unshrunk")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell.send(("begins", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell.send(("failed", report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell.send(("failed", report.nodeid))


@dataclass(frozen=True)
class Outcome:
    """Passed, failed or hangs; the test that did so; how long each took, in seconds."""

    verdict: str
    test: str
    took: dict[str, float]


class Bed:
    """A copy of the checkout in which tests are run, each time in a fork of this process: torch is loaded once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output, self.writes = folder / "copy", folder / "output", 0
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, tracked.split("\0")):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)

    def write(self, module: str, source: str) -> None:
        """Each write gets a time of its own: compiled code is told from newer code by the second."""
        self.writes += 1
        (self.folder / module).write_text(source)
        os.utime(self.folder / module, (self.writes, self.writes))

    def run(self, module: str, tests: list[str], usual: dict[str, float]) -> Outcome:
        """Run these tests until one fails, or takes ten times as long as is usual for it, and half a minute more."""
        listen, tell = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=self._child, args=(module, tests, tell))
        child.start()
        tell.close()
        verdict, test, took, since = "failed", "collection", {}, time.monotonic()
        failed = ""
        while listen.poll(since + 30 + 10 * usual.get(test, UNKNOWN) - time.monotonic()):
            try:
                said, name = listen.recv()
            except EOFError:
                break
            if said == "begins":
                took[test], test, since = time.monotonic() - since, name, time.monotonic()
            elif said == "failed":
                failed = failed or name
            elif said == "passed":
                verdict = "passed"
            elif not Path(name).is_relative_to(self.folder):
                raise RuntimeError(f"{name} was tested, not its copy")
        else:
            verdict = "hangs"
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # what a test started and left, too
        child.join()
        return Outcome(verdict, failed or test, took | {test: time.monotonic() - since})

    def _child(self, module: str, tests: list[str], tell: Connection) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        sys.path[:] = [
            str(self.folder),
            *(one for one in sys.path if Path(one).resolve() != ROOT),
        ]
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=0", f"--basetemp={self.folder.parent / 'base'}"]
        options += ["-W", "ignore:Module already imported so cannot be rewritten"]
        code = pytest.main([*options, *tests], plugins=[Watch(tell)])
        ours = sys.modules.get(module.removesuffix(".py").replace("/", "."))
        if ours and ours.__file__:
            tell.send(("imported", ours.__file__))
        if code == pytest.ExitCode.OK:
            tell.send(("passed", ""))
