"""What else used the CPU during a turn: other programs, the hypervisor, or nobody while this process stood still.

Linux counts, for each core, the time that it was busy and the time that a hypervisor gave to other guests. What this
process did not use of the busy time, others did. A reading is taken at both ends of a timed turn, outside the clock.
The share of the cores' time that others had is what decides: over ``BOUND`` the block is disturbed, as one is by a
throttled GPU (``bench.measure.gpu_state``). Elsewhere than on Linux nothing is read, and nothing is claimed.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.measure.clock import cpu_ns, now_ns

BOUND = 0.05
"""Share of the cores' time, over a turn, that others may have had."""
STALLED = 0.20
"""Share of a turn's time in which not even one thread of this process ran: it was stopped, or waited for the disk."""

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""Columns of a core's line that count work: user, nice, system, irq, softirq. Guests are in user already."""
_STOLEN = 7
_TICK_NS = 10**9 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


@dataclass(frozen=True)
class CpuReading:
    """Counters at one moment, all in nanoseconds but the last; they only grow.

    ``own_ns`` is CPU time of this process, all threads. ``busy_ns`` and ``stolen_ns`` are sums over the ``cores`` that
    this process may use. ``involuntary`` counts how often a thread of it was put aside for another.
    """

    at_ns: int
    own_ns: int
    busy_ns: int
    stolen_ns: int
    cores: int
    involuntary: int


CpuReader = Callable[[], CpuReading | None]


def reading() -> CpuReading | None:
    """The counters now; None where the system has none."""
    if not _STAT.exists():
        return None
    mine = os.sched_getaffinity(0)
    busy, stolen = _counted(_STAT.read_text(), mine)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return CpuReading(now_ns(), cpu_ns(), busy * _TICK_NS, stolen * _TICK_NS, len(mine), switches)


def others(before: CpuReading, after: CpuReading) -> float:
    """The share of the cores' time between two readings that other programs and other guests had, 0 to 1.

    The system counts in ticks of 10 ms: what one tick a core and reading could explain is not held against anybody.
    """
    wall = (after.at_ns - before.at_ns) * after.cores
    used = (after.busy_ns - before.busy_ns) - (after.own_ns - before.own_ns)
    taken = max(used - 2 * after.cores * _TICK_NS, 0) + (after.stolen_ns - before.stolen_ns)
    return min(max(taken / wall, 0.0), 1.0) if wall > 0 else 0.0


def stalled(before: CpuReading, after: CpuReading) -> float:
    """The share of the time between two readings in which no thread of this process can have run, 0 to 1."""
    wall = after.at_ns - before.at_ns
    return max(1 - (after.own_ns - before.own_ns + 2 * _TICK_NS) / wall, 0.0) if wall > 0 else 0.0


def disturbances(turns: Iterable[tuple[CpuReading, CpuReading]]) -> list[str]:
    """Why a block of these turns may not be measured by: a word for each cause. Empty: it may."""
    found = set()
    for before, after in turns:
        if others(before, after) > BOUND:
            found.add("other programs on the CPU")
        elif stalled(before, after) > STALLED:
            found.add("the process was stopped")
    return sorted(found)


def _counted(text: str, cores: Iterable[int]) -> tuple[int, int]:
    """Ticks that these cores were busy, and that were stolen from them, out of the text of /proc/stat."""
    wanted = {f"cpu{core}" for core in cores}
    busy = stolen = 0
    for line in text.splitlines():
        name, *columns = line.split()
        if name in wanted:
            busy += sum(int(columns[place]) for place in _BUSY)
            stolen += int(columns[_STOLEN])
    return busy, stolen
