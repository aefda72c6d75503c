"""From logits to distributions to draws: the only file that calls softmax or draws a token.

The target's own token is the argmax of its warped logits plus Gumbel noise (Gumbel 1954; that an argmax so perturbed
follows the softmax is the Gumbel-max trick, Maddison et al. 2014, arXiv 1411.0030). The noise of absolute position t
comes from a counter-based stream whose key is (seed, question, turn, purpose) and whose counter is t, so it depends on
nothing that a method does. A method that samples from the target and matches must therefore emit exactly vanilla's
tokens, and the test of losslessness at T>0 is equality. An argmax survives rounding: it changes only where the two best
scores lie closer than the logits' error. A draw by inverse CDF does not survive it: the interval of a rare token is
narrower than the rounding of the sum below it.

Rejection rules draw by inverse CDF, each with uniforms of a purpose of its own. ``q`` of a stochastic draft is warped
by the same functions as the target's ``p``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.base import Sampling
from methods.common.errors import NumericsError
from methods.decode.draws import Draws
from methods.decode.topk import greedy, top


class Ranking(NamedTuple):
    """Tokens in descending order of score, equals by id; ``before`` is the mass ahead of each after top-k."""

    scores: Float[Tensor, "*n vocab"]
    ids: Int[Tensor, "*n vocab"]
    before: Float[Tensor, "*n vocab"]
    kept: Bool[Tensor, "*n vocab"]


def ranking(logits: Float[Tensor, "*n vocab"], sampling: Sampling) -> Ranking:
    """What top-k and top-p keep of the logits over the temperature.

    Top-k keeps exactly k tokens, top-p the smallest set of most likely tokens whose mass reaches p; among equals
    the lowest ids stay.
    """
    scores, ids = (logits.float() / sampling.temperature).sort(dim=-1, descending=True, stable=True)
    vocab = scores.shape[-1]
    kept = (torch.arange(vocab, device=ids.device) < (sampling.top_k or vocab)).expand_as(ids)
    probs = scores.masked_fill(~kept, -torch.inf).softmax(-1).double()
    before = probs.cumsum(-1) - probs
    return Ranking(scores, ids, before, kept & (before < sampling.top_p) if sampling.top_p < 1.0 else kept)


def warped(logits: Float[Tensor, "*n vocab"], sampling: Sampling) -> Float[Tensor, "*n vocab"]:
    """Logits in float32 over the temperature, -inf where top-k or top-p drops a token; for T > 0."""
    if not (0 < sampling.top_k < logits.shape[-1] or sampling.top_p < 1.0):
        return logits.float() / sampling.temperature
    scores, ids, _, kept = ranking(logits, sampling)
    return torch.empty_like(scores).scatter_(-1, ids, scores.masked_fill(~kept, -torch.inf))


def distribution(logits: Float[Tensor, "*n vocab"], sampling: Sampling) -> Float[Tensor, "*n vocab"]:
    """Probabilities in float32 after temperature, top-k and top-p, for T > 0.

    Raises:
        ValueError: for greedy sampling, which is an argmax and not the limit of this function.
    """
    if sampling.greedy:
        raise ValueError("greedy decoding has no distribution; use greedy()")
    return warped(logits, sampling).softmax(-1)


def log_distribution(logits: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n vocab"]:
    """Unwarped log-probabilities in float32: the scores of draft trees (no temperature, also at T > 0)."""
    return logits.float().log_softmax(-1)


def likeliest(logits: Float[Tensor, "*n vocab"], k: int) -> tuple[Float[Tensor, "*n k"], Int[Tensor, "*n k"]]:
    """Unwarped log-probabilities in float32 and ids of the k most likely tokens, in descending order."""
    ids = top(logits, k)
    scores = logits.to(torch.float32, copy=True)
    # In place: a second copy of a vocabulary's scores would push the first out of the CPU's cache.
    return torch.log_softmax(scores, -1, out=scores).gather(-1, ids), ids


def draw(probs: Float[Tensor, "*n vocab"], uniform: Float[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Inverse-CDF sampling in float64 over token-id order: the first token whose cumulative mass exceeds u.

    ``probs`` need not sum to one. A token of zero mass is never returned.
    """
    cdf = probs.double().cumsum(-1)
    point = (uniform.double() * cdf[..., -1])[..., None]
    found = torch.searchsorted(cdf, point, right=True)[..., 0]
    # u * total can round up to the total itself: then take the last token that has any mass.
    last = (cdf < cdf[..., -1:]).sum(-1)
    return torch.minimum(found, last)


def draw_siblings(
    probs: Float[Tensor, "*n vocab"], uniforms: Float[Tensor, "k *n"]
) -> tuple[Int[Tensor, "*n k"], Float[Tensor, "*n vocab"]]:
    """Draw k tokens without replacement, in order, one uniform each.

    Returns the tokens and what remains of ``probs``. Where the support runs out, the id is 0 and its remaining
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


def scores(
    logits: Float[Tensor, "nodes vocab"],
    sampling: Sampling,
    draws: Draws,
    positions: range,
    depths: Int[Tensor, "nodes"] | None = None,
) -> Float[Tensor, "nodes vocab"]:
    """Scores whose argmax is the target's token after each node: the logits, at T > 0 warped and with noise.

    ``positions`` are the absolute positions that the tokens take, known on the host; ``depths`` says which of them is
    each node's (default: one each, in order).
    """
    if sampling.greedy:
        return logits
    noise = draws.gumbel(positions, logits.shape[-1], logits.device)
    return warped(logits, sampling).add_(noise if depths is None else noise[depths])


def target_tokens(
    logits: Float[Tensor, "nodes vocab"],
    sampling: Sampling,
    draws: Draws,
    positions: range,
    depths: Int[Tensor, "nodes"] | None = None,
) -> Int[Tensor, "nodes"]:
    """The target's own token after each node, as a function of its logits and its absolute position alone."""
    return greedy(scores(logits, sampling, draws, positions, depths))


def check_finite(logits: Float[Tensor, "*n vocab"], where: str) -> None:
    """Refuse NaN and +inf: argmax would return an arbitrary token and nobody would notice.

    Raises:
        NumericsError: naming where it happened.
    """
    if not bool(torch.isfinite(logits.amax())):
        raise NumericsError(f"logits are not finite {where}; try dtype float32 or bfloat16")
