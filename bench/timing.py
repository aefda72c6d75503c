"""The only clock. Monotonic nanoseconds; on a GPU, read only after the device has caught up."""

from __future__ import annotations

import time
from collections.abc import Callable


def now_ns() -> int:
    """Nanoseconds on a clock that never goes back."""
    return time.perf_counter_ns()


def cpu_ns() -> int:
    """CPU time of this process, all threads together: what a busy machine does not add to."""
    return time.process_time_ns()


def wall_time() -> str:
    """The date and time in UTC, for names and provenance; never for a duration."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Stopwatch:
    """Times one turn: the end of each step since the start, and how long each phase took in all.

    ``sync`` waits for the device. On a CPU it is nothing. On a GPU a step has already ended with its tokens on the
    host, so only the start needs it, and phases are not timed there (their ends would need syncs of their own).
    """

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        self._sync = sync
        self.step_ends_ns: list[int] = []
        self.phases_ns: dict[str, int] = {}

    def start(self) -> None:
        if self._sync:
            self._sync()
        self._start = self._last = now_ns()

    def step(self) -> None:
        self.step_ends_ns.append(now_ns() - self._start)

    def phase(self, name: str, /) -> None:
        """A phase of the decoding loop has ended."""
        if self._sync is None:
            now = now_ns()
            self.phases_ns[name] = self.phases_ns.get(name, 0) + now - self._last
            self._last = now
