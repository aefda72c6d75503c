"""The only clock. Monotonic nanoseconds; on a GPU, read only after the device has caught up."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol


def now_ns() -> int:
    """Nanoseconds on a clock that never goes back."""
    return time.perf_counter_ns()


def cpu_ns() -> int:
    """CPU time of this process, all threads together: what a busy machine does not add to."""
    return time.process_time_ns()


def wall_time() -> str:
    """The date and time in UTC, for names and provenance; never for a duration."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Event(Protocol):
    """A moment in the device's own queue of work, such as ``torch.cuda.Event``; times are in milliseconds."""

    def elapsed_time(self, end: Any, /) -> float: ...


class Stopwatch:
    """Times one turn: the end of each step since the start, and how long each phase took in all.

    ``sync`` waits for the device. On a CPU it is nothing. On a GPU a step has already ended with its tokens on the
    host, so only the start needs it. Where a phase ends the host is ahead of the device, so ``mark`` puts an event
    into its queue, and the events are read after the last step: no phase costs a sync. Without ``mark`` on a GPU
    phases are not timed.
    """

    def __init__(self, sync: Callable[[], None] | None = None, mark: Callable[[], Event] | None = None) -> None:
        self._sync, self._mark = sync, mark
        self._marks: list[tuple[str, Event]] = []
        self._phases_ns: dict[str, int] = {}
        self.step_ends_ns: list[int] = []

    def start(self) -> None:
        if self._sync:
            self._sync()
        if self._mark:
            self._marks.append(("start", self._mark()))
        self._start = self._last = now_ns()

    def step(self) -> None:
        self.step_ends_ns.append(now_ns() - self._start)

    def phase(self, name: str, /) -> None:
        """A phase of the decoding loop has ended."""
        if self._mark:
            self._marks.append((name, self._mark()))
        elif self._sync is None:
            now = now_ns()
            self._phases_ns[name] = self._phases_ns.get(name, 0) + now - self._last
            self._last = now

    def phases_ns(self) -> dict[str, int]:
        """Nanoseconds of each phase, once the turn is over. Waits for the device."""
        if self._marks and self._sync:
            self._sync()
        for (_, begin), (name, end) in pairwise(self._marks):
            self._phases_ns[name] = self._phases_ns.get(name, 0) + round(begin.elapsed_time(end) * 1e6)
        self._marks.clear()
        return self._phases_ns
