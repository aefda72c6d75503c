"""Where a process can be struck: every call that changes the disk, and every step of the work between them.

``strike`` is for a process of its own, which it patches and never mends. It counts what the main thread does below one
folder, writes each event's name to a log, and at one of them ends the process as ``kill -9`` does, or lets the call
fail as a disk does.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_write = os.write


@dataclass(frozen=True)
class Fault:
    """What happens at event ``at``: before it, after half of it (a write alone can be halved), or after it.

    ``error`` names an errno that the call raises, without a file name, as ``os.fsync`` does; None is SIGKILL. A
    ``lasting`` error meets every later change of the disk too: a full disk stays full.
    """

    at: int
    moment: str = "before"
    error: str | None = None
    lasting: bool = False


class _Points:
    def __init__(self, folder: Path, log: Path, fault: Fault | None) -> None:
        self._folder, self._fault, self._count = str(folder), fault, 0
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def below(self, path: Any) -> bool:
        return str(path).startswith(self._folder)

    def event(
        self, label: str, action: Callable[[], Any], half: Callable[[], Any] | None = None, *, disk: bool = True
    ) -> Any:
        """Do ``action``, unless the fault is due."""
        if threading.current_thread() is not threading.main_thread():
            return action()
        _write(self._log, f"{re.sub(r'[0-9a-f]{32}|[0-9a-f]{8,16}|Z-|T[0-9]{6}', '', label)}\n".encode())
        fault, index = self._fault, self._count
        self._count += 1
        if fault is None or not (index == fault.at or (fault.lasting and disk and index > fault.at)):
            return action()
        if fault.moment == "half" and half is not None:
            half()
        if fault.moment == "after":
            action()
        if fault.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(getattr(errno, str(fault.error)), os.strerror(getattr(errno, str(fault.error))))

    def watch(self, owner: Any, name: str, label: str, place: Callable[..., Any]) -> None:
        """Make an event of each call of ``owner.name`` whose ``place(arguments)`` lies below the folder."""
        real = getattr(owner, name)

        def call(*arguments: Any, **more: Any) -> Any:
            where = place(*arguments)
            if where is None or not self.below(where):
                return real(*arguments, **more)
            return self.event(f"{label} {Path(where).name}", lambda: real(*arguments, **more))

        setattr(owner, name, call)

    def work(self, owner: Any, name: str, label: str) -> None:
        """Make an event of each call that computes."""
        real = getattr(owner, name)
        setattr(owner, name, lambda *a, **k: self.event(label, lambda: real(*a, **k), disk=False))


class _File:
    """A file whose writes are events; what it was given reaches the system at once, so that half of it can."""

    def __init__(self, file: Any, points: _Points, name: str) -> None:
        self._file, self._points, self._name = file, points, name

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        def put(part: Any) -> int:
            count = self._file.write(part)
            self._file.flush()
            return int(count)

        return int(self._points.event(f"write {self._name}", lambda: put(data), lambda: put(data[: len(data) // 2])))

    def truncate(self, size: int) -> Any:
        return self._points.event(f"truncate {self._name}", lambda: self._file.truncate(size))


def strike(folder: Path, log: Path, fault: Fault | None) -> None:
    """Watch everything that this process does below ``folder`` from now on; without a fault, only write the log."""
    points = _Points(folder, log, fault)
    _watch_files(points)
    _watch_work(points)


def _watch_files(points: _Points) -> None:
    points.watch(os, "fsync", "fsync", _of_handle)
    points.watch(os, "link", "link", lambda _, to: to)
    points.watch(os, "utime", "utime", lambda path, *_: path)
    points.watch(shutil, "rmtree", "rmtree", lambda path, *_: path if Path(path).exists() else None)
    for name in ("replace", "rename"):
        points.watch(Path, name, name, lambda _, to: to)
    points.watch(Path, "unlink", "unlink", lambda path, *_: path if path.exists() else None)
    points.watch(Path, "mkdir", "mkdir", lambda path, *_: None if path.exists() else path)
    opened = Path.open

    def open_(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if not set(mode) & set("wax+") or not points.below(path):
            return opened(path, mode, *arguments, **more)
        file = points.event(f"open {path.name}", lambda: opened(path, mode, *arguments, **more))
        return _File(file, points, path.name)

    Path.open = open_  # type: ignore[method-assign, assignment]


def _watch_work(points: _Points) -> None:
    import torch

    import bench.measure.audit
    import bench.measure.block_runner
    import bench.measure.session
    import bench.measure.traces
    from methods.train import eagle, export, hydra, loop, medusa, sps

    for module in (bench.measure.session, bench.measure.block_runner, bench.measure.traces):
        module.decode = _steps(points, module.decode, module is bench.measure.traces)  # type: ignore[attr-defined]
    points.work(bench.measure.session, "load_model", "load")
    points.work(bench.measure.audit, "gaps", "audit")
    points.work(torch.nn.utils, "clip_grad_norm_", "training step")
    for module in (eagle, export, hydra, medusa, sps):
        _halve(points, module, "save_file")
    _halve(points, loop.torch, "save")


def _steps(points: _Points, real: Callable[..., Iterator[Any]], tracing: bool) -> Callable[..., Iterator[Any]]:
    def decode(target: Any, drafter: Any, request: Any, *more: Any) -> Iterator[Any]:
        kind = "trace" if tracing else "warm-up" if request.question == "warm-up" else "block"
        for step in real(target, drafter, request, *more):
            yield points.event(f"{kind} step", lambda step=step: step, disk=False)

    return decode


def _halve(points: _Points, owner: Any, name: str) -> None:
    """A writer that is no code of ours: after half of it, its file is there and short."""
    real = getattr(owner, name)

    def save(what: Any, path: Any, *arguments: Any, **more: Any) -> None:
        if isinstance(path, io.IOBase) or not points.below(path):
            real(what, path, *arguments, **more)
            return

        def half() -> None:
            real(what, path, *arguments, **more)
            os.truncate(path, Path(path).stat().st_size // 2)

        points.event(f"write {Path(path).name}", lambda: real(what, path, *arguments, **more), half)

    setattr(owner, name, save)


def _of_handle(handle: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
    except OSError:
        return None
