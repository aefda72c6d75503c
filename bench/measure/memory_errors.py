"""Which of the many errors that torch raises means that there was not enough memory."""

from __future__ import annotations

import torch

_WORDS = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "out of memory")


def out_of_memory(error: Exception) -> bool:
    """The GPU's allocator and Python have a class for it; the CPU's allocator and cuBLAS only words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in _WORDS)
    )
