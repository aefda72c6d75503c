"""Losslessness, measured on the very outputs that were timed.

The output is teacher-forced through the target in one forward, and each emitted token is held against what the target
would have chosen there. Greedy: by how many logits the token lies below the maximum. Sampling: by how much
probability the position's keyed uniform lies outside the token's interval of the CDF. Both gaps are zero in exact
arithmetic, tiny at a near-tie that another kernel rounds the other way, and large for a bug. A method whose sampling
obeys a rejection rule does not follow the keyed draws; there the gap only says whether the token has any probability
at all (its law is what the distribution tests establish).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.base import Request, Sampling
from methods.sampling import Draws, check_finite, distribution
from methods.target import Target

_CHUNK = 128
"""Rows whose distributions are held at once: bounds memory for a large vocabulary."""


@torch.inference_mode()
def gaps(target: Target, request: Request, output_ids: Sequence[int], *, keyed: bool) -> list[tuple[int, float]]:
    """The positions in ``output_ids`` whose gap is not zero, with the gap (logits if greedy, else probability)."""
    prompt = len(request.prompt_ids)
    ids = torch.tensor([*request.prompt_ids, *output_ids[:-1]], device=target.device)
    hidden = target.prefill(ids, capacity=len(ids))[prompt - 1 :]
    emitted = torch.tensor(output_ids, device=hidden.device)
    positions = torch.arange(prompt, prompt + len(output_ids), device=hidden.device)
    draws = Draws(request.sampling.seed, request.question, request.turn, prompt + len(output_ids))
    found: list[float] = []
    for start in range(0, len(output_ids), _CHUNK):
        part = slice(start, start + _CHUNK)
        logits = target.logits(hidden[part])
        check_finite(logits, f"in the answer to question {request.question}")
        if request.sampling.greedy:
            gap = _below_maximum(logits, emitted[part])
        else:
            uniform = draws.uniform("target", positions[part]) if keyed else None
            sampling = request.sampling if keyed else _widened(request.sampling)
            gap = _outside_interval(logits, emitted[part], sampling, uniform)
        found += gap.tolist()
    return [(index, gap) for index, gap in enumerate(found) if gap > 0]


def _widened(sampling: Sampling) -> Sampling:
    """Without a draw to compare, a token just past the edge of top-p or top-k may be there by rounding."""
    return replace(sampling, top_p=(1 + sampling.top_p) / 2, top_k=2 * sampling.top_k)


def _below_maximum(logits: Float[Tensor, "n vocab"], emitted: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    return (logits.amax(-1) - logits.gather(1, emitted[:, None])[:, 0]).double()


def _outside_interval(
    logits: Float[Tensor, "n vocab"], emitted: Int[Tensor, "n"], sampling: Sampling, uniform: Float[Tensor, "n"] | None
) -> Float[Tensor, "n"]:
    probs = distribution(logits, sampling).double()
    mass = probs.gather(1, emitted[:, None])[:, 0]
    if uniform is None:
        return (mass <= 0).double()
    total = probs.sum(-1)
    high = probs.cumsum(-1).gather(1, emitted[:, None])[:, 0] / total
    low = high - mass / total
    return torch.maximum(low - uniform, uniform - high).clamp(min=0.0)
