"""What the GPUs were doing around a turn: clock, heat, throttling, other processes, energy. Read through NVML.

They are read at both ends of each turn, outside the clock, and never per step: the energy counter moves only every 20
to 100 ms. A block that was disturbed measures the disturbance: it is set aside and measured again, all its methods
together, ``ATTEMPTS`` times at most (``bench.measure.session``). A CPU has no such readings; what other load did to a
number shows in its spread over questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from bench.records.block import Reading

ATTEMPTS = 3
STEADY = 0.75
"""A clock below this share of what it was earlier in the block has fallen; nvbench discards at the same threshold."""

_IDLE = "idle"
_REASONS = {
    0x1: _IDLE,
    0x2: "clock_setting",  # somebody chose the clocks, which makes a measurement steadier
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clock",
}
_THROTTLED = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"}
"""Not ``power_cap``: a board at its own limit is in its normal state under load, unless its clock falls meanwhile."""


Reader = Callable[[], list[Reading]]
"""Reads all GPUs of a target, in one order; empty where there are none, or none that answers."""


def reader(uuids: Sequence[str]) -> Reader:
    """A reader of the GPUs with these UUIDs. All of them or none: energy of one GPU in two would be half a number."""

    def read_all() -> list[Reading]:
        found = [reading(uuid) for uuid in uuids]
        return [one for one in found if one is not None] if None not in found else []

    return read_all


def reading(uuid: str) -> Reading | None:
    """A GPU's state now; None without NVML, a driver, or such a GPU. ``uuid`` is torch's, without its prefix.

    By UUID and not by index: CUDA_VISIBLE_DEVICES renumbers the GPUs for CUDA and not for NVML. Of the processes on the
    GPU one is taken to be this one, whatever number its container gives it: it has a CUDA context there by then.
    """
    found = _handle(uuid)
    if found is None:
        return None
    nvml, handle = found
    bits = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # what a driver before 535 calls it
        bits = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    power_mw = _ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return Reading(
        clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        max_clock_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1000,
        reasons=named(bits or 0),
        foreign=None if processes is None else max(len(processes) - 1, 0),
        energy_mj=_ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle),
    )


def named(bits: int) -> tuple[str, ...]:
    """NVML's mask of clock event reasons, by name; a bit newer than this table by its value."""
    return tuple(_REASONS.get(1 << place, hex(1 << place)) for place in range(bits.bit_length()) if bits >> place & 1)


def disturbances(readings: Iterable[Reading]) -> list[str]:
    """What disturbed one GPU over these readings, earliest first: why they may not be measured by. Empty: nothing."""
    found: set[str] = set()
    highest = 0
    for one in readings:
        found |= _THROTTLED & set(one.reasons)
        if one.foreign:
            found.add("another process on the GPU")
        if one.clock_mhz and _IDLE not in one.reasons:  # an idle clock is low, and rises as soon as there is work
            if one.clock_mhz < STEADY * highest:
                found.add(f"clock fell below {STEADY:.0%}")
            highest = max(highest, one.clock_mhz)
    return sorted(found)


@cache
def _handle(uuid: str) -> tuple[Any, Any] | None:
    """NVML and its handle of a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    for kind in ("GPU", "MIG"):
        handle = _ask(pynvml, "nvmlDeviceGetHandleByUUID", f"{kind}-{uuid}")
        if handle is not None:
            return pynvml, handle
    return None


def _ask(nvml: Any, query: str, *arguments: Any) -> Any:
    """The answer, or None where the board, the driver or the binding has none."""
    function = getattr(nvml, query, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None
