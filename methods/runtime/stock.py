"""Decoder layers of transformers, unchanged, row by row: what a draft head runs on with ``runtime="hf"``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from methods.runtime.cache import KVCache

Layers = Callable[[Tensor, Tensor, Tensor | None, KVCache], Tensor]
"""From hidden states [rows, hidden] and their positions [rows] to hidden states. The third argument [rows, newest] says
which of the newest keys each row sees; it sees all older ones. None means one row, or a whole text read causally. The
rows are written into the cache, whose length the caller moves."""


class Stock:
    """A stack of stock layers, called as ``methods.runtime.fused.Fused`` is."""

    def __init__(self, layers: Sequence[Any], rotary: Any, norm: Any = None) -> None:
        self._layers, self._rotary, self._norm = layers, rotary, norm
        # transformers renamed it within the versions that pyproject.toml allows.
        names = inspect.signature(layers[0].forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def __call__(self, x: Tensor, positions: Tensor, tail: Tensor | None, cache: KVCache) -> Tensor:
        """``x`` [rows, hidden] at ``positions`` [rows] through all layers, written behind ``cache.length``."""
        x = x[None]
        mask = None
        if tail is not None:
            old = cache.length + tail.shape[0] - tail.shape[1]
            mask = torch.cat([tail.new_ones(tail.shape[0], old), tail], 1)[None, None]
        rotation = self._rotary(x, positions[None])
        for layer in self._layers:
            x = layer(x, attention_mask=mask, position_embeddings=rotation, **{self._cache_argument: cache})
        return (self._norm(x) if self._norm else x)[0]
