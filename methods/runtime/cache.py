"""One preallocated key/value cache for the target and for every draft model.

``transformers`` calls ``update`` from inside each attention layer; everything else is ours. Rows past ``length``
are stale and never read, because ``update`` returns views that end with the rows just written. Keys are stored
rotated with the node's final absolute position, so keeping a path of a tree is a gather, never a re-rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

GRAIN = 256
"""Capacity grows in these steps, so that turns of similar length reuse one allocation."""


class KVCache:
    """Keys and values of ``layers`` layers, each ``[batch, kv_heads, capacity, head_dim]``.

    Decoding has batch 1; training reads and writes many texts at once, all of one length. Buffers are made at the first
    ``update``: the states that the layer passes give batch, number of KV heads (GQA), head size, dtype and device, so
    no config is read. With ``together`` (all layers on one device) the buffers are views of one pool, so that one
    gather keeps a path of a tree; a layer of another shape gets buffers of its own. ``least`` is the smallest capacity
    to allocate, for callers whose buffers must not move (CUDA graphs).
    """

    is_compileable = False
    layers: tuple[()] = ()

    def __init__(self, layers: int, *, together: bool = True, least: int = 0) -> None:
        self.length = 0
        self.capacity = 0
        self._together, self._least = together, least
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._pool: Tensor | None = None  # [layers, keys and values, batch, kv_heads, capacity, head_dim]
        self._loose: list[int] = []  # layers with buffers of their own

    @property
    def layer_count(self) -> int:
        return len(self._keys)

    def reset(self, capacity: int) -> None:
        """Forget everything and make room for ``capacity`` rows."""
        self.length = 0
        if capacity > self.capacity or None in self._keys:  # an earlier allocation failed for lack of memory
            self.capacity = -(-max(capacity, self._least) // GRAIN) * GRAIN
            self._release()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows after ``length`` and return all rows up to them. The caller of the forward moves ``length``.

        Raises:
            IndexError: if the rows do not fit; the loop checks before, so this is a bug and not a user's error.
        """
        end = self.check_fits(key_states.shape[2])
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if keys is None or values is None or keys.shape[0] != key_states.shape[0]:
            if keys is not None:
                self._release()  # another batch
            keys, values = self._make(key_states, value_states, layer_idx)
        keys[:, :, self.length : end] = key_states
        values[:, :, self.length : end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def check_fits(self, rows: int) -> int:
        """The length of the cache with this many rows more.

        Raises:
            IndexError: as ``update``.
        """
        if (end := self.length + rows) > self.capacity:
            raise IndexError(f"cache of {self.capacity} rows cannot take rows up to {end}")
        return end

    def blank(self, start: int, stop: int) -> None:
        """Zero these rows of every layer: a masked key has weight zero, but zero times a stale NaN is NaN."""
        for buffer in self._allocations():
            buffer[..., start:stop, :].zero_()

    def keep(self, rows: Sequence[int]) -> None:
        """Commit rows of the last forward (numbered from 0 at ``length``, ascending) and drop the others."""
        kept = len(rows)
        if rows[-1] != kept - 1:
            source: dict[torch.device, Tensor] = {}  # one upload per device, not one per layer
            for buffer in self._allocations():
                if buffer.device not in source:
                    source[buffer.device] = torch.tensor(rows, device=buffer.device) + self.length
                # A gather makes its own copy first, so source and destination may overlap.
                kept_rows = buffer.index_select(-2, source[buffer.device])
                buffer[..., self.length : self.length + kept, :] = kept_rows
        self.length += kept

    def select(self, texts: Tensor) -> None:
        """Keep these texts of the batch, in this order."""
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                assert buffer is not None
                buffers[layer] = buffer.index_select(0, texts.to(buffer.device))
        self._pool, self._loose = None, list(range(len(self._keys)))

    def _allocations(self) -> list[Tensor]:
        """The pool of all layers, and the buffers of those that have their own."""
        pool = [] if self._pool is None else [self._pool]
        return [*pool, *(buffer for layer in self._loose for buffer in self.buffers(layer))]

    def _release(self) -> None:
        self._keys = [None] * len(self._keys)
        self._values = [None] * len(self._values)
        self._pool, self._loose = None, []

    def _make(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Make a layer's buffers: its part of the pool if it has the pool's shape, else its own. The first layer makes
        the pool.
        """
        batch, heads, _, dim = key_states.shape
        shape = (batch, heads, self.capacity, dim)
        alike = value_states.shape == key_states.shape
        if self._pool is None and self._together and alike and not self._loose:
            self._pool = key_states.new_empty(len(self._keys), 2, *shape)
        pool = self._pool
        if pool is not None and alike and (pool.shape[2:], pool.dtype) == (shape, key_states.dtype):
            keys, values = pool[layer].unbind(0)
        else:
            keys, values = key_states.new_empty(shape), value_states.new_empty((*shape[:3], value_states.shape[3]))
            self._loose.append(layer)
        self._keys[layer], self._values[layer] = keys, values
        return keys, values

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """The committed keys and values of a layer, each ``[kv_heads, length, head_dim]``."""
        keys, values = self.buffers(layer)
        return keys[0, :, : self.length], values[0, :, : self.length]

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's whole buffers, each ``[batch, kv_heads, capacity, head_dim]``; rows past ``length`` are stale."""
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        return keys, values

    # What transformers' mask helpers ask of a cache when no 4-D mask is passed (prefill and one-row steps).

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:
        # Before transformers 5.14 this argument was the tensor of cache positions.
        rows = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return self.length + rows, 0

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self._keys)

    @property
    def is_initialized(self) -> bool:
        return self._keys[0] is not None
