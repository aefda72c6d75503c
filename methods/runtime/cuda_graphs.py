"""Forwards of fixed shapes, replayed as CUDA graphs: ``runtime="graph"``.

On a GPU a forward of few rows ends before the host has launched its next kernel. A CUDA graph launches all kernels at
once, but it repeats what was recorded: the same kernels on the same addresses. So a forward behind a text runs in a
bucket: rows are padded to a power of two, keys and values are read up to a multiple of ``GRAIN``, and what changes
(states, rotation, the slots that rows are written to, the mask) lies in buffers. A bucket runs ``Fused``'s layers.

Padding rows repeat the last row, so they rewrite the same values and need no space. The prefill is not recorded, since
every prompt length is another shape.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.common.errors import ArgumentError
from methods.runtime.cache import GRAIN, KVCache
from methods.runtime.fused import Fused

_WARM = 2
"""Forwards run before the recording, so that libraries choose their kernels and allocate their workspace."""


def refuse_without_gpu(device: torch.device) -> None:
    """Refuse a device that has no graphs.

    Raises:
        ArgumentError: unless it is a CUDA device.
    """
    if device.type != "cuda":
        raise ArgumentError(f"runtime=graph needs a CUDA device, not {device}; use fused")


class Graphed:
    """A stack of layers, called as ``methods.runtime.fused.Fused`` is."""

    recorded = 0
    """Buckets recorded in this process, by all stacks. A cycle in which this grew must not be timed."""

    def __init__(self, layers: Sequence[Any], rotary: Any, norm: Any = None) -> None:
        self._fused = Fused(layers, rotary, norm)
        self._made: weakref.WeakKeyDictionary[KVCache, _Made] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        x: Float[Tensor, "rows hidden"],
        positions: Int[Tensor, "rows"],
        tail: Bool[Tensor, "rows newest"] | None,
        cache: KVCache,
    ) -> Float[Tensor, "rows hidden"]:
        """Write the rows into the cache behind ``cache.length`` and return their states."""
        if not cache.length:
            read = self._fused(x, positions, tail, cache)
            cache.blank(x.shape[0], cache.capacity)
            return read
        return self._bucket(x, cache)(x, self._fused.rotation(x, positions), tail, cache)

    def _bucket(self, x: Tensor, cache: KVCache) -> _Bucket:
        """The smallest bucket that holds these rows and this text, once the rows that drafts left behind the text are
        zero.
        """
        keys, made = cache.buffers(0)[0], self._made.get(cache)
        if made is None or made.keys() is not keys:  # a new allocation: the recorded graphs belong to the old one
            made = self._made[cache] = _Made(weakref.ref(keys), {}, _Recorder(x.device) if x.is_cuda else None)
        end = cache.check_fits(x.shape[0])
        if made.written > end:
            cache.blank(end, made.written)
        made.written = end
        rows = 1 << (x.shape[0] - 1).bit_length()
        context = -(-end // GRAIN) * GRAIN
        if (rows, context) not in made.buckets:
            made.buckets[rows, context] = _Bucket(self._fused, cache, x, rows, context, made.recorder)
            Graphed.recorded += 1
        return made.buckets[rows, context]


class _Recorder:
    """What the graphs of one allocation share with each other and with nobody else; they are freed together.

    They share the memory between input and output, since no two of them run at once. They also share the stream: its
    cuBLAS workspace is part of each graph, and is cleared when a graph of that stream is freed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, forward: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM):
                    forward()
            here.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                forward()
        return graph.replay


@dataclass
class _Made:
    """The buckets of one allocation of a cache, by (rows, keys), and the end of the rows written to it."""

    keys: Callable[[], Tensor | None]
    buckets: dict[tuple[int, int], _Bucket]
    recorder: _Recorder | None
    written: int = 0


class _Bucket:
    """One shape: its buffers, and the function that replays it."""

    def __init__(
        self, fused: Fused, cache: KVCache, x: Tensor, rows: int, context: int, recorder: _Recorder | None
    ) -> None:
        self._fused, self._recorder = fused, recorder
        self._x, self._out = x.new_zeros(rows, x.shape[1]), x.new_zeros(rows, x.shape[1])
        self._rotation: tuple[Tensor, Tensor] | None = None
        self._mask = x.new_zeros(rows * fused.share, context)
        self._slots = _Slots(cache, torch.zeros(rows, dtype=torch.long, device=x.device), context)
        self._place = torch.arange(rows, device=x.device)
        self._replay: Callable[[], None] | None = None

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], tail: Tensor | None, cache: KVCache) -> Tensor:
        rows, end = x.shape[0], cache.length + x.shape[0]
        source = self._place.clamp(max=rows - 1)
        self._x.copy_(x[source])
        self._slots.index.copy_(source + cache.length)
        if self._rotation is None:
            self._rotation = rotation[0][source], rotation[1][source]
        for mine, new in zip(self._rotation, rotation, strict=True):
            mine.copy_(new[source])
        newest = 0 if tail is None else tail.shape[1]
        self._mask.fill_(-torch.inf)
        self._mask[:, : end - newest] = 0.0
        if tail is not None:
            hidden = torch.zeros_like(tail, dtype=x.dtype).masked_fill_(~tail, -torch.inf)
            self._mask[:, end - newest : end] = hidden[source].repeat_interleave(self._fused.share, 0)
        if self._replay is None:
            self._replay = self._recorder(self._forward) if self._recorder else self._forward
        self._replay()
        return self._out[:rows].clone()

    def _forward(self) -> None:
        assert self._rotation is not None
        self._out.copy_(self._fused.run(self._x, self._rotation, self._mask, self._slots))


class _Slots:
    """A cache as a recorded forward sees it: rows go to the slots in ``index``; ``context`` keys are read always."""

    def __init__(self, cache: KVCache, index: Tensor, context: int) -> None:
        self._cache: KVCache = weakref.proxy(cache)
        self.index, self._context = index, context

    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._cache.buffers(layer)
        keys.index_copy_(2, self.index, key_states)
        values.index_copy_(2, self.index, value_states)
        return keys[:, :, : self._context], values[:, :, : self._context]
