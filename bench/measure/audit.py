"""Losslessness, measured on the very outputs that were timed.

The output is teacher-forced through the target in one forward, and each emitted token is held against what the target
would have chosen there. The *gap* of a token is the error in logits that it takes to explain it: if no difference of
two logits is off by as much, the target emits another token. It is zero in exact arithmetic, as large as rounding at a
near-tie that another kernel rounds the other way, and large for a bug. Three things may need explaining:

* another token has a higher score (the logit; at T>0 over the temperature and with the noise of the position): by how
  much, times the temperature;
* unless top-k or top-p drops that other token, once it is moved across their edge;
* the emitted token is itself beyond that edge: how far.

A method whose sampling obeys a rejection rule does not follow the keyed draws. There only the last counts, and whether
the token has any probability at all (the law of such a method is what the distribution tests establish).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.base import Request, Sampling
from methods.decode.draws import Draws
from methods.decode.sampling import check_finite, distribution, ranking, scores
from methods.decode.target import Target

_CHUNK = 128
"""Rows whose scores are held at once: bounds memory for a large vocabulary."""
_FLOOR = -1e6
"""Stands for the logit -inf of a masked token, so that a gap is always a number that JSON can hold."""


@torch.inference_mode()
def gaps(target: Target, request: Request, output_ids: Sequence[int], *, keyed: bool) -> list[tuple[int, float]]:
    """The positions in ``output_ids`` whose gap is not zero, with the gap in logits."""
    prompt = len(request.prompt_ids)
    ids = torch.tensor([*request.prompt_ids, *output_ids[:-1]], device=target.device)
    hidden = target.prefill(ids, capacity=len(ids))[prompt - 1 :]
    emitted = torch.tensor(output_ids, device=hidden.device)
    draws = Draws(request.sampling.seed, request.question, request.turn, prompt + len(output_ids))
    found: list[float] = []
    for start in range(0, len(output_ids), _CHUNK):
        tokens = emitted[start : start + _CHUNK]
        logits = target.logits(hidden[start : start + _CHUNK])
        check_finite(logits, f"in the answer to question {request.question}")
        logits = logits.double().clamp(min=_FLOOR)
        if keyed:
            first = prompt + start
            gap = chosen_gap(logits, tokens, request.sampling, draws, range(first, first + len(tokens)))
        else:
            gap = possible_gap(logits, tokens, request.sampling)
        found += gap.tolist()
    return [(index, gap) for index, gap in enumerate(found) if gap > 0]


def chosen_gap(
    logits: Float[Tensor, "n vocab"], emitted: Int[Tensor, "n"], sampling: Sampling, draws: Draws, positions: range
) -> Float[Tensor, "n"]:
    """The error that it takes to make each emitted token the target's own."""
    score = scores(logits, _unfiltered(sampling), draws, positions).double()
    lead = score - _of(score, emitted)
    if sampling.greedy:
        return lead.amax(-1)
    inside = _inside(logits, sampling)
    beaten = torch.minimum(lead * sampling.temperature, inside).amax(-1)
    return torch.maximum(beaten, -_of(inside, emitted)[:, 0]).clamp(min=0.0)


def possible_gap(logits: Float[Tensor, "n vocab"], emitted: Int[Tensor, "n"], sampling: Sampling) -> Float[Tensor, "n"]:
    """The error that it takes to bring each emitted token inside the filters; without mass, its whole deficit."""
    outside = -_of(_inside(logits, sampling), emitted)[:, 0]
    mass = _of(distribution(logits, _unfiltered(sampling)), emitted)[:, 0]
    deficit = logits.amax(-1) - _of(logits, emitted)[:, 0]
    return torch.where(mass > 0, outside, deficit).clamp(min=0.0)


def _inside(logits: Float[Tensor, "n vocab"], sampling: Sampling) -> Float[Tensor, "n vocab"]:
    """How far, in logits, each token lies inside the edge of top-k and top-p; negative beyond it.

    A token crosses the edge by moving to another rank, which costs the difference of the two logits, if at that rank
    the mass ahead lies on the other side of p. An error of e in all differences moves the odds of a mass by exp(e) at
    most, so the distance of a mass from p is that of their log-odds, and crossing costs the larger of the two.
    """
    if sampling.top_p == 1.0 and not sampling.top_k:
        return torch.full_like(logits, torch.inf)
    ranks = ranking(logits, sampling)
    score, vocab = ranks.scores.double(), logits.shape[-1]
    beyond = torch.full_like(score, -torch.inf)
    if sampling.top_p < 1.0:
        beyond = torch.logit(ranks.before.clamp(0.0, 1.0)) - math.log(sampling.top_p / (1.0 - sampling.top_p))
    beyond[:, sampling.top_k or vocab :] = torch.inf
    # One cost falls with the rank and the other grows: the cheapest crossing is on one side of where they meet.
    meet = torch.searchsorted(beyond - score, -score)
    above, below = meet - 1, meet.clamp(max=vocab - 1)
    down = torch.where(meet < vocab, score - score.gather(-1, below), torch.inf)
    to_drop = torch.minimum(down, -beyond.gather(-1, above))
    to_keep = torch.minimum(score.gather(-1, above) - score, beyond.gather(-1, below))
    margin = torch.where(ranks.kept, to_drop, -to_keep) * sampling.temperature
    return torch.empty_like(margin).scatter_(-1, ranks.ids, margin)


def _unfiltered(sampling: Sampling) -> Sampling:
    return replace(sampling, top_p=1.0, top_k=0)


def _of(rows: Float[Tensor, "n vocab"], tokens: Int[Tensor, "n"]) -> Float[Tensor, "n 1"]:
    return rows.gather(-1, tokens[:, None])
