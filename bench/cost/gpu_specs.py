"""What a plan must know about a GPU: memory and bandwidth, as NVIDIA's data sheets print them."""

from __future__ import annotations

from dataclasses import dataclass

import methods
from methods.common.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. ``bandwidth`` is the memory's, in bytes/s at its peak; None if this table lacks the GPU."""

    name: str
    memory_bytes: float
    bandwidth: float | None


# name: GB (10^9 bytes) of memory, GB/s of bandwidth, and the words of nvidia-smi's name for it
_TABLE: dict[str, tuple[float, float, tuple[str, ...]]] = {
    "b200": (180, 7700, ("B200",)),
    "h200": (141, 4800, ("H200",)),
    "h100_pcie": (80, 2000, ("H100", "PCIe")),
    "h100": (80, 3350, ("H100",)),
    "a100_80gb": (80, 2039, ("A100", "80GB")),
    "a100_40gb": (40, 1555, ("A100",)),
    "l40s": (48, 864, ("L40S",)),
    "a6000": (48, 768, ("RTX", "A6000")),
    "a40": (48, 696, ("A40",)),
    "v100_32gb": (32, 900, ("V100", "32GB")),
    "rtx4090": (24, 1008, ("RTX", "4090")),
    "rtx3090": (24, 936, ("RTX", "3090")),
    "a10": (24, 600, ("A10",)),
    "l4": (24, 300, ("L4",)),
    "t4": (16, 320, ("T4",)),
}


def named(name: str) -> Gpu:
    """The GPU that ``plan.gpu`` names.

    Raises:
        ConfigError: if the table lacks it.
    """
    if name not in _TABLE:
        raise ConfigError(f"plan.gpu={name} is not known{methods.hint(name, list(_TABLE))}")
    memory, bandwidth, _ = _TABLE[name]
    return Gpu(name, memory * 1e9, bandwidth * 1e9)


def recognised(name: str) -> str | None:
    """The table's name for what the driver calls a GPU, as in ``NVIDIA A100-SXM4-80GB``."""
    found = name.replace("-", " ").split()
    return next((ours for ours, (_, _, words) in _TABLE.items() if set(words) <= set(found)), None)
