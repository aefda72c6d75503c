"""One writer of a cell: its owner is named, a dead one is replaced, a living one never, and one that lost notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.records import lock
from bench.records.block import Block
from bench.records.lock import Busy, Lock, Lost, holder, living
from bench.records.store import Store
from tests.support.commands import environment


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats and silences of a test's length."""
    monkeypatch.setattr(lock, "BEAT_S", 0.05)


def stranger(folder: Path, age_s: float, **changes: Any) -> Path:
    """An owner on another machine, whose last heartbeat is so old."""
    owner = {"id": "x", "host": "node7", "pid": 1, "started": "1", "table": "another boot", "job": "5_1", **changes}
    path = folder / ".owner.3"
    path.write_text(json.dumps(owner))
    stamp = path.stat().st_mtime - age_s
    os.utime(path, (stamp, stamp))
    return path


def test_an_owner_is_named_and_gone_after_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    first, second = Lock(tmp_path), Lock(tmp_path)
    first.acquire()
    owner = living(tmp_path)
    assert owner
    assert lock.who(owner) == f"pid {os.getpid()} on {os.uname().nodename}, job 17_3"
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    with pytest.raises(Busy, match=r"is being written by another process \(pid \d+ on .*, job 17_3\); wait"):
        Lock(tmp_path).acquire()
    first.release()
    assert living(tmp_path) is None
    second.acquire()
    assert [path.name for path in tmp_path.iterdir()] == [".owner.2"], "neither old owners nor claims are left"
    second.release()


def test_a_process_that_was_killed_is_replaced_at_once(tmp_path: Path) -> None:
    program = (
        f"import os; from bench.records.lock import *; Lock(Path({str(tmp_path)!r})).acquire(); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=environment(), check=False)
    assert killed.returncode == -9
    assert holder(tmp_path)[1]["pid"] > 1
    assert living(tmp_path) is None
    Lock(tmp_path).acquire()
    assert holder(tmp_path)[1]["pid"] == os.getpid()


def test_a_pid_that_another_process_has_now_is_not_the_owner(tmp_path: Path) -> None:
    table = lock._process_table()
    stranger(tmp_path, 0, table=table, pid=os.getpid(), started="1")
    Lock(tmp_path).acquire()


def test_a_stranger_with_a_fresh_heartbeat_holds_and_one_that_fell_silent_does_not(tmp_path: Path) -> None:
    stranger(tmp_path, lock.SILENT_S - 30)
    with pytest.raises(Busy, match="pid 1 on node7, job 5_1"):
        Lock(tmp_path).acquire()
    stranger(tmp_path, lock.SILENT_S + 1)
    Lock(tmp_path).acquire()
    assert holder(tmp_path)[0] == 4


def test_an_old_heartbeat_that_goes_on_was_a_clock_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's clock was set forward between two beats: the owner looks dead, and beats while we watch."""
    path = stranger(tmp_path, lock.SILENT_S + 1)
    taker = Lock(tmp_path)
    monkeypatch.setattr(taker._stop, "wait", lambda _: os.utime(path))
    with pytest.raises(Busy):
        taker.acquire()


def test_clocks_of_hosts_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's clock is days behind ours; both stamps are its own."""
    real, late = os.utime, 3 * 86400.0

    def utime(path: Any, times: Any = None) -> None:
        real(path)
        if times is None:
            now = Path(path).stat().st_mtime
            real(path, (now - late, now - late))

    path = stranger(tmp_path, late)
    monkeypatch.setattr(os, "utime", utime)
    with pytest.raises(Busy):
        Lock(tmp_path).acquire()
    stamp = path.stat().st_mtime - lock.SILENT_S - 1
    real(path, (stamp, stamp))
    Lock(tmp_path).acquire()


def test_a_requeued_task_waits_for_its_former_self_instead_of_giving_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    looks = []

    def wait(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            stranger(tmp_path, 0, released=True)

    stranger(tmp_path, 0, run=1)
    with pytest.raises(Busy):  # the same run, twice: a second command in one allocation
        Lock(tmp_path).acquire()
    stranger(tmp_path, 0, run=0)
    requeued = Lock(tmp_path)
    monkeypatch.setattr(requeued._stop, "wait", wait)
    monkeypatch.setattr(requeued, "_beat", lambda: None)
    requeued.acquire()
    assert len(looks) == 3
    assert holder(tmp_path)[1]["run"] == 1


def test_of_many_who_see_one_dead_owner_one_takes_over(tmp_path: Path) -> None:
    stranger(tmp_path, lock.SILENT_S + 1)
    start, won, refused = threading.Barrier(12), [], []

    def take() -> None:
        one = Lock(tmp_path)
        start.wait()
        try:
            one.acquire()
            won.append(one)
        except Busy:
            refused.append(one)

    threads = [threading.Thread(target=take) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 11)
    won[0].confirm()


def test_a_number_that_was_swept_away_meanwhile_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the folder and the claim, the next owner came and swept, and the one after it lives."""
    stranger(tmp_path, lock.SILENT_S + 1)
    link = os.link

    def late(draft: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        stranger(tmp_path, 0).replace(tmp_path / ".owner.5")
        link(draft, path)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Busy):
        Lock(tmp_path).acquire()
    assert holder(tmp_path)[0] == 5
    assert not (tmp_path / ".owner.4").exists()


def test_an_owner_beats_while_it_lives(tmp_path: Path) -> None:
    one = Lock(tmp_path)
    one.acquire()
    path = tmp_path / ".owner.1"
    os.utime(path, (1.0, 1.0))
    for _ in range(200):
        if path.stat().st_mtime > 1:
            break
        one._stop.wait(0.05)
    assert path.stat().st_mtime > 1
    one.release()


def test_one_that_was_suspended_and_lost_writes_nothing_more(tmp_path: Path) -> None:
    store, block = Store(tmp_path), Block(question_id="a", runs=[])
    with store.writing():
        store.append_block(block)
        (tmp_path / ".owner.2").write_text(json.dumps({"id": "y", "host": "node8", "pid": 1, "table": "another"}))
        with pytest.raises(Lost, match="was taken over"):
            store.append_block(block)
        with pytest.raises(Lost):
            store.mark_done({})
    assert len(store.blocks()) == 1
    assert store.done() is None
    assert holder(tmp_path)[1]["host"] == "node8", "the release left the new owner alone"
