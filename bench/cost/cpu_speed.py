"""How fast this CPU copies and multiplies: measured once, kept in the user's cache by CPU, threads and dtype.

A bound on decoding needs these two numbers, and data sheets give them for GPUs at best. Each number is the best of a
few tries. A try counts its CPU time where that is less than wall time, so that other processes do not count. A number
taken on a busy machine is still too low, and stays until its file is removed (``speeds.json`` in ``DRAFTBENCH_CACHE``,
default ``~/.cache/draftbench``). Torch is imported only to measure.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench.measure.clock import cpu_ns, now_ns, wall_time
from bench.records import hardware
from methods.common.atomic_write import write_atomically
from methods.common.paths import cache_folder

_COPIED = 2**28
"""Bytes of the copied operand: larger than the last-level cache of nearly every CPU of today."""
_ROWS, _SIDE = 256, 2048
_TRIES, _ENOUGH_NS = 5, 10**9


@dataclass(frozen=True)
class Speeds:
    """``copy``: bytes/s read and written together; ``multiply``: floating-point operations/s of a product of matrices
    in one dtype; ``taken``: when."""

    copy: float
    multiply: float
    taken: str


def known(dtype: str) -> Speeds | None:
    """What was measured before; None if nothing was, or the file is not in our format."""
    return _kept().get(f"{_kind()}, {dtype}")


def speeds(dtype: str) -> Speeds:
    """From the cache, else measured now (about two seconds)."""
    found = known(dtype)
    if found is None:
        found, kept = _measure(dtype), _kept()
        alike = [one for key, one in kept.items() if key.startswith(f"{_kind()}, ")]
        if alike:  # copying knows no dtype: one figure for all
            found = Speeds(alike[0].copy, found.multiply, found.taken)
        kept[f"{_kind()}, {dtype}"] = found
        path = cache_folder() / "speeds.json"
        with contextlib.suppress(OSError):  # a cache that can't be written costs two seconds next time
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({key: asdict(one) for key, one in kept.items()}, indent=1) + "\n")
    return found


def _kept() -> dict[str, Speeds]:
    try:
        found: dict[str, dict[str, Any]] = json.loads((cache_folder() / "speeds.json").read_text())
        return {key: Speeds(**one) for key, one in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _kind() -> str:
    facts = hardware.describe()
    return hardware.kind({**facts, "gpus": [], "threads": int(os.environ.get("OMP_NUM_THREADS") or facts["cores"])})


def _measure(dtype: str) -> Speeds:
    import torch

    source = torch.ones(_COPIED // 4, dtype=torch.float32)
    sink = torch.zeros_like(source)
    rows = torch.randn(_ROWS, _SIDE).to(getattr(torch, dtype))
    weight = torch.randn(_SIDE, _SIDE).to(rows.dtype)

    def best(work: Callable[[], object]) -> float:
        """Seconds of the fastest try after one that warms up."""
        taken: list[int] = []
        while len(taken) <= _TRIES and (len(taken) < 2 or sum(taken) < _ENOUGH_NS):
            start, start_cpu = now_ns(), cpu_ns()
            work()
            wall, cpu = now_ns() - start, (cpu_ns() - start_cpu) // torch.get_num_threads()
            taken.append(min(wall, max(cpu, 1)))
        return min(taken[1:]) / 1e9

    with torch.inference_mode():
        copied = 2 * _COPIED / best(lambda: sink.copy_(source))
        multiplied = 2 * _ROWS * _SIDE**2 / best(lambda: torch.nn.functional.linear(rows, weight))
    return Speeds(copied, multiplied, wall_time())
