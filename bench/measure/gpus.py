"""The GPUs that a target lies on, and what torch knows of them: when they are done, their events, their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import torch

from bench.measure.clock import Event, Stopwatch
from bench.records import hardware
from methods.decode.target import Target


def placement(target: Target) -> dict[str, int]:
    """How many of the target's modules lie on each device: accelerate's map, or all of it on one."""
    placed = getattr(target.model, "hf_device_map", None) or {"": target.device}
    return dict(Counter(f"cuda:{where}" if isinstance(where, int) else str(where) for where in placed.values()))


def gpus(target: Target) -> list[torch.device]:
    """Each with its index: ``cuda`` alone would follow whatever device is current."""
    found = [gpu for name in placement(target) if (gpu := torch.device(name)).type == "cuda"]
    return [torch.device("cuda", torch.cuda.current_device()) if gpu.index is None else gpu for gpu in found]


def uuids(found: Sequence[torch.device]) -> list[str]:
    """By which NVML knows them too, whatever CUDA_VISIBLE_DEVICES calls them."""
    return [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in found]


def stopwatch(found: Sequence[torch.device]) -> Stopwatch:
    """Events lie in one GPU's queue and see nothing of another's work: over several GPUs phases are not timed."""
    if not found:
        return Stopwatch()
    return Stopwatch(partial(_synchronize, found), partial(_mark, found[0]) if len(found) == 1 else None)


def reset_peak(found: Sequence[torch.device]) -> None:
    """Start the peak anew. The CPU's cannot be."""
    for gpu in found:
        torch.cuda.reset_peak_memory_stats(gpu)


def peak_bytes(found: Sequence[torch.device]) -> int:
    """Bytes of tensors at most, over all GPUs; on a CPU the process's largest resident set."""
    return sum(torch.cuda.max_memory_allocated(gpu) for gpu in found) if found else hardware.peak_bytes()


def _synchronize(found: Sequence[torch.device]) -> None:
    for gpu in found:
        torch.cuda.synchronize(gpu)


def _mark(gpu: torch.device) -> Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(gpu))
    return event
