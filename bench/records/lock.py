"""One writer of a cell at a time, on any machine: a lock that names its owner and shows that the owner lives.

``flock`` is not enough on a cluster: many shared file systems ignore it between nodes, and it cannot say who holds it.
Here the owner is a file, ``.owner.<n>``; the highest n holds. Two tasks that see the same dead owner both try to make
n + 1, and making a file under a name that must not exist is atomic on NFS, Lustre and GPFS too.

Whether an owner is dead is judged in two ways. In the same process table (same boot, same pid namespace): by its
process. Elsewhere by its heartbeat, the file's modification time, which the owner renews every ``BEAT_S``. Clocks of
hosts are never compared: a heartbeat's age is counted from a file made now in the same folder, so both stamps come
from the file system's clock; and an old one is then watched for ``BEAT_S`` more, in case that clock was set. An owner
that was only suspended finds, before it writes, that it no longer holds.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError

BEAT_S = 10.0
SILENT_S = 90.0
"""Nine missed beats. NFS may show a modification time up to a minute late (acregmax), so no less will do."""


class Busy(ConfigError):  # noqa: N818 a state of the cell; nothing is in error until somebody insists
    """Another living process holds this cell."""


class Lost(RuntimeError):  # noqa: N818
    """This process was taken for dead, and another one goes on with the cell."""


class Lock:
    """Holds a folder while it lives; ``acquire``, ``check`` before each write, ``release``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._claim = {**_here(), "id": uuid.uuid4().hex}
        self._path: Path | None = None
        self._stop = threading.Event()

    def acquire(self) -> None:
        """Take the folder, from a dead owner too. A former run of the same Slurm task is waited for, not refused.

        Raises:
            Busy: if a living process holds it.
            OSError: if the folder cannot be written.
        """
        self._stop.clear()
        draft = self._folder / f".claim.{self._claim['id']}"
        draft.write_text(json.dumps(self._claim))
        try:
            while not self._take(draft):
                pass
        finally:
            draft.unlink(missing_ok=True)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _take(self, draft: Path) -> bool:
        """One try: True if it was taken, False if the world changed meanwhile and has to be looked at anew."""
        number, owner = holder(self._folder)
        if number and not owner.get("released") and not self._is_dead(number, owner, draft):
            if self._is_former_self(owner):  # requeued after its node was lost: it dies, or falls silent, before long
                self._stop.wait(BEAT_S)
                return False
            raise Busy(f"{self._folder} is being written by another process ({who(owner)}); wait for it or stop it")
        path = self._folder / f".owner.{number + 1}"
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        if holder(self._folder)[0] != number + 1:  # a later owner had come, gone, and swept this number away
            path.unlink()
            return False
        os.utime(path)
        self._path = path
        for old in self._folder.glob(".owner.*"):
            if int(old.suffix[1:]) <= number:
                old.unlink(missing_ok=True)
        return True

    def _is_dead(self, number: int, owner: dict[str, Any], draft: Path) -> bool:
        path = self._folder / f".owner.{number}"
        if _within_sight(owner):
            return not _runs(owner)
        before = _stamp(path)
        if before is None:
            return True
        os.utime(draft)
        if (_stamp(draft) or before) - before < SILENT_S:
            return False
        self._stop.wait(BEAT_S)
        return _stamp(path) == before

    def _is_former_self(self, owner: dict[str, Any]) -> bool:
        mine, job = self._claim, self._claim["job"]
        return job is not None and owner.get("job") == job and int(owner.get("run", 0)) < mine["run"]

    def confirm(self) -> None:
        """Called before each write.

        Raises:
            Lost: if another process has taken over.
        """
        if self._path is None or holder(self._folder)[0] != int(self._path.suffix[1:]):
            raise Lost(f"{self._folder} was taken over by another process while this one was suspended or cut off")

    def release(self) -> None:
        """Give the folder back. The file stays, since a number may not be used twice while somebody looks at it."""
        self._stop.set()
        if self._path is None:
            return
        path, self._path = self._path, None
        draft = self._folder / f".claim.{self._claim['id']}"
        with suppress(OSError):  # the disk is full or gone: then it is given back when this process ends
            try:
                if holder(self._folder)[0] == int(path.suffix[1:]):
                    draft.write_text(json.dumps({**self._claim, "released": True}))
                    draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                if self._path is not None:
                    os.utime(self._path)
            except OSError:  # swept away, or the file system is: ``check`` tells before the next write
                return


def holder(folder: Path) -> tuple[int, dict[str, Any]]:
    """The highest number and what it says of its owner; (0, {}) if nobody ever held it."""
    numbers = [int(path.suffix[1:]) for path in folder.iterdir() if path.name.startswith(".owner.")]
    if not numbers:
        return 0, {}
    try:
        found: dict[str, Any] = json.loads((folder / f".owner.{max(numbers)}").read_bytes())
    except (FileNotFoundError, ValueError):  # swept away as we looked, or cut short by a crash of the machine
        found = {}
    return max(numbers), found


def living(folder: Path) -> dict[str, Any] | None:
    """Who holds a folder now, as far as one look tells; an owner elsewhere may have died since its last heartbeat."""
    _, owner = holder(folder)
    if not owner or owner.get("released") or (_within_sight(owner) and not _runs(owner)):
        return None
    return owner


def who(owner: dict[str, Any]) -> str:
    """An owner in words."""
    job = f", job {owner['job']}" if owner.get("job") else ""
    return f"pid {owner.get('pid')} on {owner.get('host')}{job}"


def _here() -> dict[str, Any]:
    """This process: as others may look it up, and as a reader may find it."""
    env = os.environ
    array = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}"
    job = (
        array.format(**env) if "SLURM_ARRAY_TASK_ID" in env and "SLURM_ARRAY_JOB_ID" in env else env.get("SLURM_JOB_ID")
    )
    pid, run = os.getpid(), int(env.get("SLURM_RESTART_COUNT", "0"))
    facts = {"host": os.uname().nodename, "pid": pid, "started": _started(pid), "table": _process_table()}
    return {**facts, "job": job, "run": run}


def _process_table() -> str | None:
    """What two processes must share for one to look the other up; None where that cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in ticks since boot: a pid is used again, a pid and its start are not. None: no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _within_sight(owner: dict[str, Any]) -> bool:
    """Whether the owner's pid means something here."""
    return owner.get("table") is not None and owner["table"] == _process_table()


def _runs(owner: dict[str, Any]) -> bool:
    return owner.get("started") is not None and _started(int(owner.get("pid", 0))) == owner["started"]


def _stamp(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
