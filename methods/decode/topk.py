"""The largest scores of a row, ties to the lowest index: how tokens and nodes are ranked.

``torch.topk`` promises no order among equals, and equal scores are common: a bfloat16 logit has steps of 0.125, and a
child of confidence 1 ties with its parent. A stable sort is exact but slow over a vocabulary, and so are the CPU's
kernels for 16-bit floats.

This module packs score and index into one integer: key = index - bits * 2^20, where ``bits`` are the bits of the float
read as an integer. Positive floats compare as their bits do, no two keys are equal, and key mod 2^20 is the index. The
best logits of a language model are positive; where one found is not, the row is ranked again, more slowly. NaN is not
supported.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

_RUN = 128
"""Scores in a run. Published vocabularies are multiples of it."""

_NARROW = 512
"""Up to this width one stable sort is faster than the several operations that would replace it."""

_INDICES = 1 << 20
"""key = index - bits * 2^20; key mod 2^20 is the index."""


def greedy(logits: Float[Tensor, "*n vocab"]) -> Int[Tensor, "*n"]:
    """The most likely token; ties go to the lowest id (which ``torch.argmax`` and ``numpy.argmax`` document).

    On a CPU numpy's argmax is used, which is vectorized; torch's is not.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    short = logits.itemsize == 2
    rows = (_bits(logits) if short else logits).detach().numpy().reshape(-1, logits.shape[-1])
    index = rows.argmax(-1)
    if short and not all(rows.item(*place) > 0 for place in enumerate(index.tolist())):
        return logits.argmax(-1)
    return torch.from_numpy(index).view(logits.shape[:-1])


def top(scores: Float[Tensor, "*n width"], k: int) -> Int[Tensor, "*n k"]:
    """Indices of the k largest, compared as float32, in descending order; ties go to the lowest.

    Ranking by raw bits is right if all k found are positive. Otherwise, and on a GPU, where checking would wait for the
    device, the order of negative bits is reversed first.

    Raises:
        ValueError: for k above the width, or a width above 2^20.
    """
    if not k <= scores.shape[-1] <= _INDICES:
        raise ValueError(f"the {k} largest of {scores.shape[-1]} scores: at most all, and of at most {_INDICES}")
    scores = scores.float() if scores.itemsize > 4 else scores
    if scores.shape[-1] <= _NARROW:
        return scores.argsort(dim=-1, descending=True, stable=True)[..., :k]
    if scores.device.type == "cpu":
        keys = _ranked(_bits(scores), k)
        if int(keys.max()) < 0:
            return keys % _INDICES
    bits = _bits(scores + 0.0)  # makes -0.0 and 0.0 one value
    turned = (1 << (8 * bits.itemsize - 1)) - 1
    return _ranked(torch.where(bits < 0, bits ^ turned, bits), k) % _INDICES


def _bits(scores: Tensor) -> Int[Tensor, "*n width"]:
    return scores.view(torch.int16 if scores.itemsize == 2 else torch.int32)


def _ranked(bits: Int[Tensor, "*n width"], k: int) -> Int[Tensor, "*n k"]:
    """Keys of the k largest, in ascending order: the best score has the lowest key.

    A wide row is cut into runs, and only k runs are ranked score by score: the first k when runs are ordered by their
    maximum, equals by place. Any other run holds none of the k largest, since each of those k runs has a score that
    comes before all of its own.
    """
    width = bits.shape[-1]
    places = _places(width, bits.device)
    # Few kernels: with cold caches each launch costs more than its work.
    if width >= 8 * _RUN and width % _RUN == 0 and k * _RUN < width:
        maxima = bits.view(*bits.shape[:-1], -1, _RUN).amax(-1)
        runs = _lowest(_places(width // _RUN, bits.device), maxima, k) % _INDICES
        places = torch.add(_places(_RUN, bits.device), runs[..., None], alpha=_RUN).flatten(-2)
        bits = bits.gather(-1, places)
    return _lowest(places, bits, k)


def _lowest(places: Int[Tensor, "*#n width"], bits: Int[Tensor, "*n width"], k: int) -> Int[Tensor, "*n k"]:
    return torch.sub(places, bits, alpha=_INDICES).topk(k, largest=False).values


@lru_cache(maxsize=64)
def _places(width: int, device: torch.device) -> Int[Tensor, "width"]:
    return torch.arange(width, device=device)
