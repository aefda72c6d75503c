"""The random numbers of one turn: Gumbel noise and uniforms as pure functions of what they are for and where.

They are read from counter-based streams whose key is (seed, question, turn, purpose) and whose counter is the absolute
position, so they depend on nothing that a method does. ``methods.decode.sampling`` says how tokens are drawn from them.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Purpose = Literal["draft", "coin", "residual", "window"]

LANES = 16
"""Uniforms reserved per position and purpose: rank j of siblings drawn at one node uses lane j."""


class Draws:
    """The random numbers of one turn, as pure functions of (position, token) or (purpose, position, lane).

    ``positions`` bounds the absolute positions of which uniforms will be asked.
    """

    def __init__(self, seed: int, question: str, turn: int, positions: int) -> None:
        self._key = f"{seed}\x1f{question}\x1f{turn}"
        self._positions = positions
        self._noise: dict[tuple[int, int, torch.device], Tensor] = {}
        self._tables: dict[tuple[Purpose, torch.device], Tensor] = {}

    def gumbel(self, positions: range, vocab: int, device: torch.device) -> Float[Tensor, "positions vocab"]:
        """The noise of the target's token at consecutive absolute positions: standard Gumbel, float32, finite.

        The noise of a smaller vocabulary is the beginning of a larger one's. A row is kept until the first position
        asked for lies behind it. So a turn makes and uploads each row once, and holds at most as many rows as its
        deepest tree has levels.
        """
        self._noise = {key: row for key, row in self._noise.items() if key[0] >= positions.start}
        for key in ((position, vocab, device) for position in positions):
            if key not in self._noise:
                row = torch.from_numpy(self._gumbel_row(key[0], vocab))
                self._noise[key] = row.to(device, non_blocking=True)
        return torch.stack([self._noise[position, vocab, device] for position in positions])

    def _gumbel_row(self, position: int, vocab: int) -> np.ndarray:
        # The position counts in the upper half of the 256-bit counter, so the streams of two positions never overlap.
        bits = self._stream("target", position << 128).random_raw(vocab) >> np.uint64(12)
        # 52 bits plus one half: exact in float64 and never 0 or 1, so that both logarithms are finite.
        noise = (bits + 0.5) * 2.0**-52
        for _ in range(2):
            np.negative(np.log(noise, out=noise), out=noise)
        return noise.astype(np.float32)

    def uniform(self, purpose: Purpose, positions: Int[Tensor, "*n"], lane: int = 0) -> Float[Tensor, "*n"]:
        """The float64 uniforms in [0, 1) of these absolute positions, on their device, without a host sync.

        Raises:
            ValueError: if ``lane`` is not below 16.
        """
        if not 0 <= lane < LANES:
            raise ValueError(f"lane {lane} must be below {LANES}")
        return self._table(purpose, positions.device)[positions, lane]

    def _table(self, purpose: Purpose, device: torch.device) -> Tensor:
        if (purpose, device) not in self._tables:
            bits = self._stream(purpose).random_raw(self._positions * LANES) >> np.uint64(11)
            table = torch.from_numpy(bits * 2.0**-53).view(self._positions, LANES)
            self._tables[purpose, device] = table.to(device)
        return self._tables[purpose, device]

    def _stream(self, purpose: str, counter: int = 0) -> np.random.Philox:
        """The raw 64-bit stream is part of numpy's compatibility promise; its float methods are not."""
        digest = hashlib.sha256(f"{self._key}\x1f{purpose}".encode()).digest()
        return np.random.Philox(key=int.from_bytes(digest[:16], "little"), counter=counter)
