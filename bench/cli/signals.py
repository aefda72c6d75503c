"""A scheduler's warning as a quiet end: USR1 (the time limit is near) and TERM (preempted, cancelled) stop a run.

The current block is dropped, what was committed stays, locks are given back. It is the way of Ctrl-C: at any moment,
without waiting for a block that may take longer than the warning lasts. A run that meets SIGKILL instead loses the
same block; only its lock is found by others a little later.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from methods.common.errors import ConfigError


class Stopped(KeyboardInterrupt):
    """The scheduler asked for an end. ``code`` is what a shell would say: 128 plus the signal."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number).name
        self.code = 128 + number
        super().__init__(self.signal)


@contextmanager
def unless_fruitless(written: Callable[[], int]) -> Iterator[None]:
    """Stop requeueing a task whose time limit cannot hold one block. ``written`` counts what the task has so far.

    Raises:
        ConfigError: in place of ``Stopped``, if the time limit ended a requeued run that wrote nothing more.
    """
    requeued = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    before = written() if requeued else 0
    try:
        yield
    except Stopped as stopped:
        if stopped.signal == "SIGUSR1" and requeued and written() == before:
            raise ConfigError(
                "the time limit came again before one more block was finished; give the task a longer --time, or take "
                "fewer methods"
            ) from None
        raise


@contextmanager
def heeding_signals() -> Iterator[None]:
    """Raise ``Stopped`` at the first USR1 or TERM; more of them must not disturb the cleaning up."""
    numbers = (signal.SIGUSR1, signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = [(number, signal.signal(number, stop)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def in_slurm_task() -> bool:
    """Whether this process is a task that submitit started: then only an exception tells it that a cell has failed."""
    return "SUBMITIT_EXECUTOR" in os.environ
