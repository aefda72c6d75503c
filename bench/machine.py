"""How fast this machine copies and multiplies: measured once, kept in the user's cache by kind of machine and dtype.

A bound on decoding needs two numbers, and a data sheet knows them for a GPU at best. Each is the best of a few tries on
operands too large for a cache, on a CPU by the process's own time where that is less (others' work does not count). One
taken on a busy machine is still too low, and stays until its file is removed (``speeds.json`` in ``DRAFTBENCH_CACHE``,
default ``~/.cache/draftbench``). Torch loads only to measure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench import hardware
from bench.records import write_atomically
from bench.timing import cpu_ns, now_ns, wall_time
from methods.paths import cache_folder

_COPIED = 2**28
"""Bytes of the copied operand: beyond the last cache of any CPU of today but a few."""
_ROWS, _SIDE = 256, 2048
_TRIES, _ENOUGH_NS = 5, 10**9


@dataclass(frozen=True)
class Speeds:
    """``copy``: bytes/s read and written together; ``multiply``: floating-point operations/s of a product of matrices
    in one dtype; ``taken``: when."""

    copy: float
    multiply: float
    taken: str


def speeds(dtype: str) -> Speeds:
    """Of the device that ``device=auto`` chooses here: from the cache, else measured now (about two seconds)."""
    path, facts = cache_folder() / "speeds.json", hardware.describe()
    key = f"{hardware.kind(facts)}, {dtype}"
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_text())
    if key not in known:
        known[key] = asdict(_measure(dtype))
        with contextlib.suppress(OSError):  # a cache that can't be written costs two seconds next time
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(known, indent=1) + "\n")
    return Speeds(**known[key])


def _measure(dtype: str) -> Speeds:
    import torch

    on_gpu = torch.cuda.is_available()
    where = torch.device("cuda" if on_gpu else "cpu")
    source = torch.ones(_COPIED // 4, dtype=torch.float32, device=where)
    sink = torch.zeros_like(source)
    rows = torch.randn(_ROWS, _SIDE, device=where).to(getattr(torch, dtype))
    weight = torch.randn(_SIDE, _SIDE, device=where).to(rows.dtype)

    def best(work: Callable[[], object]) -> float:
        """Seconds of the fastest try after one that warms up."""
        taken: list[int] = []
        while len(taken) <= _TRIES and (len(taken) < 2 or sum(taken) < _ENOUGH_NS):
            if on_gpu:
                torch.cuda.synchronize()
            start, start_cpu = now_ns(), cpu_ns()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            wall, cpu = now_ns() - start, (cpu_ns() - start_cpu) // torch.get_num_threads()
            taken.append(wall if on_gpu else min(wall, max(cpu, 1)))
        return min(taken[1:]) / 1e9

    with torch.inference_mode():
        copied = 2 * _COPIED / best(lambda: sink.copy_(source))
        multiplied = 2 * _ROWS * _SIDE**2 / best(lambda: torch.nn.functional.linear(rows, weight))
    return Speeds(copied, multiplied, wall_time())
