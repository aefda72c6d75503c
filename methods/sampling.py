"""From logits to distributions to draws: the only file that calls softmax or draws a token.

Draws are keyed by position. The uniform behind the target's token at absolute position t is the t-th output of a
counter-based stream whose key is (seed, question, turn, purpose): it depends on nothing that a method does. So any
method that samples from the target and matches must emit exactly vanilla's tokens, and the test of losslessness
at T>0 is equality. ``q`` of a stochastic draft goes through the same functions as the target's ``p``.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.base import NumericsError, Sampling

Purpose = Literal["target", "draft", "coin", "residual", "window"]

LANES = 16
"""Uniforms reserved per position and purpose: rank j of siblings drawn at one node uses lane j."""


class Draws:
    """The random numbers of one turn, float64 in [0, 1), as pure functions of (purpose, position, lane).

    ``positions`` bounds the absolute positions that will be asked for.
    """

    def __init__(self, seed: int, question: str, turn: int, positions: int) -> None:
        self._key = f"{seed}\x1f{question}\x1f{turn}"
        self._positions = positions
        self._tables: dict[tuple[Purpose, torch.device], Tensor] = {}

    def uniform(self, purpose: Purpose, positions: Int[Tensor, "*n"], lane: int = 0) -> Float[Tensor, "*n"]:
        """The uniforms of these absolute positions, on their device, without a host sync.

        Raises:
            ValueError: if ``lane`` is not below 16.
        """
        if not 0 <= lane < LANES:
            raise ValueError(f"lane {lane} must be below {LANES}")
        return self._table(purpose, positions.device)[positions, lane]

    def _table(self, purpose: Purpose, device: torch.device) -> Tensor:
        if (purpose, device) not in self._tables:
            digest = hashlib.sha256(f"{self._key}\x1f{purpose}".encode()).digest()
            stream = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
            # The raw 64-bit stream is part of numpy's compatibility promise; the float methods are not.
            bits = stream.random_raw(self._positions * LANES) >> np.uint64(11)
            table = torch.from_numpy(bits * 2.0**-53).view(self._positions, LANES)
            self._tables[purpose, device] = table.to(device)
        return self._tables[purpose, device]


def greedy(logits: Float[Tensor, "*n vocab"]) -> Int[Tensor, "*n"]:
    """The most likely token; ties go to the lowest id (which ``torch.argmax`` documents)."""
    return logits.argmax(-1)


def distribution(logits: Float[Tensor, "*n vocab"], sampling: Sampling) -> Float[Tensor, "*n vocab"]:
    """Probabilities in float32 after temperature, top-k and top-p, for T > 0.

    Top-k keeps exactly k tokens, top-p the smallest set of most likely tokens whose mass reaches p; among equals
    the lowest ids stay.

    Raises:
        ValueError: for greedy sampling, which is an argmax and not the limit of this function.
    """
    if sampling.greedy:
        raise ValueError("greedy decoding has no distribution; use greedy()")
    scaled = logits.float() / sampling.temperature
    vocab = scaled.shape[-1]
    if not (0 < sampling.top_k < vocab or sampling.top_p < 1.0):
        return scaled.softmax(-1)
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    if 0 < sampling.top_k < vocab:
        ordered[..., sampling.top_k :] = -torch.inf
    probs = ordered.softmax(-1)
    if sampling.top_p < 1.0:
        before = probs.double().cumsum(-1) - probs.double()
        probs = probs.masked_fill(before >= sampling.top_p, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, ids, probs)


def log_distribution(logits: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n vocab"]:
    """Unwarped log-probabilities in float32: the scores of draft trees (no temperature, also at T > 0)."""
    return logits.float().log_softmax(-1)


def draw(probs: Float[Tensor, "*n vocab"], uniform: Float[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Inverse-CDF sampling in float64 over token-id order: the first token whose cumulative mass exceeds u.

    ``probs`` need not sum to one. A token of zero mass is never returned.
    """
    cdf = probs.double().cumsum(-1)
    point = (uniform.double() * cdf[..., -1])[..., None]
    found = torch.searchsorted(cdf, point, right=True)[..., 0]
    # u * total can round up to total itself: then the last token that has any mass is meant.
    last = (cdf < cdf[..., -1:]).sum(-1)
    return torch.minimum(found, last)


def draw_siblings(
    probs: Float[Tensor, "*n vocab"], uniforms: Float[Tensor, "k *n"]
) -> tuple[Int[Tensor, "*n k"], Float[Tensor, "*n vocab"]]:
    """Draw k tokens without replacement, in order, one uniform each.

    Returns the tokens and what is left of ``probs``. Where the support runs out, the id is 0 and its remaining
    probability is zero, so the verifier's own recomputation skips it.
    """
    left = probs.clone()
    tokens = []
    for uniform in uniforms:
        token = draw(left, uniform)
        tokens.append(token)
        left = without(left, token)
    return torch.stack(tokens, -1), left


def without(probs: Float[Tensor, "*n vocab"], token: Int[Tensor, "*n"]) -> Float[Tensor, "*n vocab"]:
    """``probs`` with one token removed and renormalised; all zeros once the support is used up.

    Drafting and verification must both go through here: the acceptance ratio is only right for the very q that
    the sibling was drawn from.
    """
    rest = probs.scatter(-1, token[..., None], 0.0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, 0.0)


def top(scores: Float[Tensor, "*n width"], k: int) -> tuple[Float[Tensor, "*n k"], Int[Tensor, "*n k"]]:
    """The k largest of float32 scores, in descending order; ties go to the lowest index.

    ``torch.topk`` promises no order among equals, and equal scores are common (a child with confidence 1 ties with its
    parent). Score and index are packed into one integer, so that no two are equal.
    """
    width = scores.shape[-1]
    bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 and 0.0 one value
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers now compare as the floats do
    key = (ordered << 20) | (torch.arange(width, device=scores.device) ^ 0xFFFFF)
    index = (key.topk(k, dim=-1).values & 0xFFFFF) ^ 0xFFFFF
    return scores.gather(-1, index), index


def target_tokens(
    logits: Float[Tensor, "nodes vocab"], sampling: Sampling, draws: Draws, positions: Int[Tensor, "nodes"]
) -> Int[Tensor, "nodes"]:
    """The target's own token after each node: argmax, or a draw keyed by the absolute position it will take."""
    if sampling.greedy:
        return greedy(logits)
    return draw(distribution(logits, sampling), draws.uniform("target", positions))


def check_finite(logits: Float[Tensor, "*n vocab"], where: str) -> None:
    """Refuse NaN and +inf: argmax would return an arbitrary token and nobody would notice.

    Raises:
        NumericsError: naming where it happened.
    """
    if not bool(torch.isfinite(logits.amax())):
        raise NumericsError(f"logits are not finite {where}; try model.dtype=float32 or bfloat16")
