"""Where a cycle's time goes: the calls of the target and of the draft's network, timed inside the ordinary loop.

Nothing is simulated: an ``Arm`` runs ``methods.decode.loop.decode``, and the meter wraps the callables that are model
forwards. What is left of a cycle is overhead: choosing nodes, building trees, accepting, compacting the cache, Python.
Masks and positions made inside a forward count as the forward's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bench.measure.clock import cpu_ns, now_ns
from methods.base import Request, Step
from methods.decode.loop import decode
from methods.decode.target import Target

SKIPPED_AT_START = 2
"""Of every text: the prefill, and the cycle in which a head reads the prompt."""
SKIPPED_AT_RETURN = 1
"""Of every burst: other arms ran in between and left the caches of the CPU to this one cold."""


def clock() -> np.ndarray:
    """Wall and CPU time in ns. On a GPU the device is waited for, so there the overhead is an upper bound."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return np.array([now_ns(), cpu_ns()])


class Meter:
    """Adds up the time and the number of calls of each kind; a call inside another belongs to the outer one."""

    def __init__(self) -> None:
        self._inside = False
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.spent = {kind: np.zeros(2, dtype=int) for kind in ("target", "draft")}
        self.calls = dict.fromkeys(self.spent, 0)

    def wrap(self, owner: Any, name: str | int, kind: str) -> None:
        """Time an attribute of an object, or an item of a list, from now on."""
        if isinstance(owner, list):
            assert isinstance(name, int)
            owner[name] = self._timed(owner[name], kind)
        else:
            setattr(owner, str(name), self._timed(getattr(owner, str(name)), kind))

    def watch(self, drafter: Any) -> None:
        """Time the forwards of a drafter's own network, where it says that it has one."""
        for owner, name in getattr(drafter, "networks", list)():
            self.wrap(owner, name, "draft")

    def _timed(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._inside:
                return function(*args, **named)
            self._inside = True
            start = clock()
            try:
                return function(*args, **named)
            finally:
                self._inside = False
                self.spent[kind] += clock() - start
                self.calls[kind] += 1

        return call


@dataclass
class Burst:
    """Some cycles in a row: sums over them, times as (wall, CPU) in ns."""

    cycles: int = 0
    emitted: int = 0
    rows: int = 0
    total: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=int))
    target: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=int))
    draft: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=int))
    draft_calls: int = 0

    def ms(self, part: str = "total") -> np.ndarray:
        """Wall and CPU ms per cycle of ``total``, ``target`` or ``draft``."""
        return np.array(getattr(self, part) / self.cycles / 1e6)


class Arm:
    """A method with a target cache of its own, so that it can stop after any cycle and go on later."""

    def __init__(self, drafter: Any, target: Target, meter: Meter, requests: list[Request]) -> None:
        self.drafter = drafter
        self._target, self._meter, self._requests = target, meter, requests
        self._cache = target.new_cache()
        self._steps: Iterator[Step] = iter(())
        self._texts = self._left_out = 0

    def enter(self) -> None:
        """Give the target this arm's cache."""
        self._target.cache = self._cache

    def run(self, cycles: int) -> Burst:
        """The next cycles that count, on a new text where one ends."""
        self.enter()
        self._left_out = max(self._left_out, SKIPPED_AT_RETURN)
        burst = Burst()
        while burst.cycles < cycles:
            self._meter.reset()
            start = clock()
            step = next(self._steps, None)
            spent = clock() - start
            if step is None:
                request = self._requests[self._texts % len(self._requests)]
                self._steps, self._left_out = decode(self._target, self.drafter, request), SKIPPED_AT_START
                self._texts += 1
            elif self._left_out:
                self._left_out -= 1
            else:
                burst.cycles += 1
                burst.emitted += len(step.tokens)
                burst.rows += step.rows
                burst.total += spent
                burst.target += self._meter.spent["target"]
                burst.draft += self._meter.spent["draft"]
                burst.draft_calls += self._meter.calls["draft"]
        return burst
