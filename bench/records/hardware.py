"""What the machine is: recorded with every session, because a speedup without its machine means nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers, found without importing torch (planning must stay quick)."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def describe() -> dict[str, Any]:
    """CPU, memory, GPUs and how busy the machine is now. Reads no host name: it would identify, not explain."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
    }


def kind(facts: dict[str, Any]) -> str:
    """What must be equal for two sessions to share a table: what the model ran on, not what else is in the box."""
    gpus = facts.get("gpus") or []
    if gpus and not str(facts.get("device", "cuda")).startswith("cpu"):
        return f"{len(facts.get('layers_on') or gpus)} x {gpus[0]['name']}"
    return f"{facts['cpu']}, {facts.get('threads', facts['cores'])} cores"


def peak_bytes() -> int:
    """The largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself. Elsewhere torch widens every operand, at several times the cost."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & _cpu()[1])


def _cpu_name() -> str:
    """The model name, with the vector extensions that decide how fast each dtype runs: two CPUs of one name differ."""
    name, flags = _cpu()
    fast = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{name} ({', '.join(fast)})" if fast else name


def _cpu() -> tuple[str, set[str]]:
    """Model name and feature flags (``flags`` on x86, ``Features`` on ARM), as /proc/cpuinfo has them."""
    name, flags = platform.processor() or "unknown CPU", set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
    return name, flags


def _gpus() -> list[dict[str, str]]:
    if not has_gpu():
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()  # noqa: S603 fixed argv
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(("name", "driver", "memory"), line.split(", "), strict=True)) for line in lines]
