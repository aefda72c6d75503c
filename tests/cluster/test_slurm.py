"""A grid on a real Slurm by both routes, tasks killed, cancelled, requeued and warned: its table is the local one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.records import lock
from bench.records.store import Store
from tests.support.commands import ROOT, Command, environment

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
PATIENCE_S = 900
NODE = ROOT / "scripts" / "local_slurm.sh"
GRID = [
    "table=table1",
    "profile=embedded_float32",  # as quick on any CPU
    "method=[pld]",
    "task=[mt_bench,gsm8k,alpaca]",  # at T=0 and T=1
    "task.count=2",
    "decode.max_new_tokens=6",
    "measure.warmup_tokens=0",
]
CELLS = 6
FACTS = ("prompt_tokens", "output_ids", "emitted", "rows", "drafted", "accepted", "finish", "keyed")
COUNTS = ("questions", "turns", "drafted_per_cycle", "tau_micro", "tau_question", "tau_paper", "lossless")


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment in which ``sbatch`` reaches a Slurm of our own."""
    if not shutil.which("slurmctld"):
        pytest.skip("NOT TESTED: Slurm is not installed; apt-get install slurmctld slurmd slurm-client munge")
    with socket.socket() as probe:  # two workers may have a node each
        probe.bind(("127.0.0.1", 0))
        port = str(min(probe.getsockname()[1], 60000))
    folder = tempfile.mkdtemp(prefix="slurm-")
    os.chmod(folder, 0o755)  # noqa: PTH101
    try:
        subprocess.run([NODE, "up", folder], check=True, timeout=180, env={**os.environ, "LOCAL_SLURM_PORT": port})
        path = f"{folder}/bin{os.pathsep}{os.environ['PATH']}"
        yield {**environment(), "PATH": path, "SLURM_CONF": f"{folder}/slurm.conf", "DRAFTBENCH_PYTHON": sys.executable}
    finally:
        subprocess.run([NODE, "down", folder], check=True, timeout=180)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the same grid, run in one local process."""
    results = tmp_path_factory.mktemp("home") / "results"
    command = [sys.executable, "-m", "bench.run", *GRID, f"results={results}"]
    subprocess.run(command, check=True, timeout=PATIENCE_S, env=environment(), cwd=results.parent)
    return results


class Cluster:
    """One route to the cluster, and what may happen to its tasks."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env, self._folder = env, folder
        self.results = folder / "results"

    def sbatch(self) -> None:
        script = [str(ROOT / "scripts" / "slurm_array.sbatch"), *GRID, f"results={self.results}"]
        log = self._folder / "%A_%a.log"
        print(self.call("sbatch", f"--array=0-{CELLS - 1}", f"--output={log}", *script))

    def launcher(self) -> subprocess.Popen[bytes]:
        setup = "launcher.setup=['export OMP_NUM_THREADS=1']"
        route = ["launcher=slurm", "launcher.parallel=2", setup, f"results={self.results}"]
        command = [sys.executable, "-m", "bench.run", *GRID, *route]
        return subprocess.Popen(command, cwd=self._folder, env=self._env)

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._env, cwd=self._folder, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def warn(self, job: str, *how: str) -> None:
        """Signal a task as its time limit does. ``scancel`` goes on trying after the task is requeued: end it soon."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["scancel", *how, job], env=self._env, check=True, timeout=3)

    def strike(self, act: Callable[[dict[str, Any]], object], spared: set[str], blocks: int = 0) -> str:
        """Do something to a task that works on a cell and has committed so many blocks; the cell's name."""

        def struck() -> str | None:
            for folder in self.results.glob("runs/*"):
                owner = lock.living(folder)
                if owner and folder.name not in spared and len(Store(folder).blocks()) == blocks:
                    act(owner)
                    return folder.name
            return None

        return until(struck, "a cell that somebody works on", every_s=0.05)

    def wait_until_idle(self) -> None:
        until(lambda: not self.call("squeue", "-h"), "an empty queue", every_s=0.5)


def until(found: Callable[[], Any], what: str, every_s: float) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(every_s)
    raise AssertionError(f"waited in vain for {what}")


def done(results: Path) -> set[str]:
    return {path.parent.name for path in results.glob("runs/*/DONE")}


def facts(results: Path) -> dict[str, Any]:
    """All that does not depend on a clock: cell -> (question, method) -> turns. Fails if a block is there twice."""
    found: dict[str, Any] = {}
    for folder in (results / "runs").iterdir():
        cell: dict[tuple[str, str], Any] = {}
        for block in Store(folder).blocks():
            for run in block.runs:
                key = (block.question_id, run.method)
                assert key not in cell, f"{folder.name} holds {key} twice"
                cell[key] = run.method_id, [{name: getattr(turn, name) for name in FACTS} for turn in run.turns]
        found[folder.name] = cell
    return found


def table(results: Path, command: Command) -> pd.DataFrame:
    """The table's rows by cell, without what a clock has measured."""
    assert command(*GRID, f"results={results}", module="bench.report").code == 0
    rows = pd.read_csv(results / "tables" / "table1-partial.csv")
    return rows.set_index(["method", "task"]).sort_index()[list(COUNTS)]


@pytest.mark.parametrize("route", ["array", "launcher"])
def test_a_grid_whose_tasks_are_killed_cancelled_and_requeued_ends_as_the_local_one(
    route: str,
    cluster: dict[str, str],
    at_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    there, command = Cluster(cluster, tmp_path), Command(monkeypatch, capfd)
    if route == "array":
        there.sbatch()
    else:
        waiting = there.launcher()
    # As a time limit does: to the batch shell where that passes it on, to submitit's Python else.
    warning = ("--batch", "--signal=USR1") if route == "array" else ("--signal=USR2",)

    killed = there.strike(lambda owner: os.kill(owner["pid"], signal.SIGKILL), set(), blocks=1)
    requeued = there.strike(lambda owner: there.call("scontrol", "requeue", owner["job"]), {killed})
    warned = there.strike(lambda owner: there.warn(owner["job"], *warning), {killed, requeued})
    cancelled = there.strike(lambda owner: there.call("scancel", owner["job"]), {killed, requeued, warned})
    there.wait_until_idle()
    if route == "launcher":
        assert waiting.wait(PATIENCE_S) == 1, "a task died, and the command must say so"

    everything = {path.name for path in (at_home / "runs").iterdir()}
    assert len(everything) == CELLS
    left = everything - done(there.results)
    assert killed in left
    assert left <= {killed, cancelled}, "those that were to go on have gone on by themselves"  # one may end before TERM
    assert len(Store(there.results / "runs" / killed).blocks()) == 1, "what was committed before the kill is there"
    status = command(*GRID, f"results={there.results}", "plan.status=true")
    assert status.last_line == {"cells": CELLS, "done": CELLS - len(left), "waiting": len(left)}, (
        "dead owners are not running"
    )

    if route == "array":
        there.sbatch()
        there.wait_until_idle()
    else:
        assert there.launcher().wait(PATIENCE_S) == 0
    assert done(there.results) == everything
    assert facts(there.results) == facts(at_home)
    pd.testing.assert_frame_equal(table(there.results, command), table(at_home, command))
    assert {len(found) for found in facts(there.results).values()} == {2 * 2}, "two questions, vanilla and one method"
    sessions = Store(there.results / "runs" / killed).sessions()
    assert len(sessions) == 2, json.dumps(sorted(sessions))
