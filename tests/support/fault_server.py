"""Runs the entry points in forks of one process that has imported everything: a trial costs no import of torch.

A request is a line of JSON, a list of runs that start together; the answer is a line with how each ended (``-9`` is a
kill). A command that comes again is *parked*: one process has composed its configuration and waits there, and each run
is a fork of it, so that hundreds of trials cost no more than the work that is tried.
``tests/support/faults.py`` talks to it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import tqdm

import bench.measure.session
import bench.plan.grid
import bench.report.__main__
import bench.report.figures
import bench.report.layout
import bench.report.tables
import bench.run
import methods.train.__main__
import methods.train.stages
from tests.support.fault_points import Fault, strike

ENTRY_POINTS = {
    "bench.run": bench.run.main,
    "bench.report": bench.report.__main__.main,
    "methods.train": methods.train.__main__.main,
}


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    parked: dict[str, _Parked] = {}
    seen: set[str] = set()
    for line in sys.stdin:
        runs = json.loads(line)
        key = json.dumps([runs[0]["module"], runs[0]["arguments"]])
        if len(runs) == 1 and key in seen and runs[0]["module"] != "methods.train":
            if key not in parked:
                parked[key] = _Parked(runs[0])
            codes = [parked[key].run(runs[0])]
        else:
            codes = [_ended(pid) for pid in [_start(run) for run in runs]]
            _import_what_it_needed(Path(runs[0]["err"] + ".modules"))
            seen.add(key)
        answers.write(json.dumps(codes) + "\n")
        answers.flush()
    for one in parked.values():
        one.end()


class _Parked:
    """A process that waits where its cells are known, and forks from there."""

    def __init__(self, first: dict[str, Any]) -> None:
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ask)
            self._wait(first, os.fdopen(asked), answered)
        os.close(asked)
        os.close(answered)
        self._codes = os.fdopen(self._answer)

    def run(self, run: dict[str, Any]) -> int:
        os.write(self._ask, f"{json.dumps(run)}\n".encode())
        return int(self._codes.readline())

    def end(self) -> None:
        os.write(self._ask, b"\n")  # closing would not do: those parked later hold this end too
        _ended(self._pid)

    def _wait(self, first: dict[str, Any], requests: Any, answered: int) -> None:
        real = bench.plan.grid.resolve

        def resolve(*arguments: Any) -> Any:
            found = real(*arguments)
            while line := requests.readline().strip():
                run = json.loads(line)
                pid = os.fork()
                if not pid:
                    bench.plan.grid.resolve = real
                    _become(run)
                    return found
                os.write(answered, f"{_ended(pid)}\n".encode())
            os._exit(0)

        bench.plan.grid.resolve = resolve
        os._exit(_exit_code(first, lambda: None))


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _start(run: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = _exit_code(run, lambda: _become(run))
    if run["bytes"] is None:
        Path(run["err"] + ".modules").write_text("\n".join(sys.modules))
    os._exit(code)


def _exit_code(run: dict[str, Any], become: Any) -> int:
    """Run a command as its module's ``__main__`` does."""
    code = 1
    try:
        # The bar's own lock is shared between forks: whoever is killed holding it would stop all others.
        tqdm.tqdm.set_lock(threading.RLock())
        sys.argv = [run["module"], *run["arguments"]]
        become()
        ENTRY_POINTS[run["module"]]()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 a traceback is what a user would see
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _become(run: dict[str, Any]) -> None:
    """Turn a fresh fork into this run: its streams, its limits, its fault."""
    for path, handle in ((run["out"], 1), (run["err"], 2), (os.devnull, 0)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if handle else 0))
        os.dup2(opened, handle)
        os.close(opened)
    if run["bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (run["bytes"], run["bytes"]))
    if run["log"]:
        strike(Path(run["folder"]), Path(run["log"]), Fault(**run["fault"]) if run["fault"] else None)


def _import_what_it_needed(listed: Path) -> None:
    """A first run imports for seconds what its successors then find here."""
    if not listed.exists():
        return
    for name in set(listed.read_text().splitlines()) - set(sys.modules):
        with suppress(Exception):
            importlib.import_module(name)
    listed.unlink()
    gc.freeze()


if __name__ == "__main__":
    main()
