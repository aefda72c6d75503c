"""Estimators by name. Needs numpy only: no torch, no model.

There is no bare "tau" or "speedup": each estimator is named, and every one is computed from the same per-question sums
(all turns and repeats of a question together), for vanilla exactly as for the methods. ``docs/metrics.md`` works each
through on one small turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bench.records.block import Block

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Per-question sums of one method beside vanilla in the same blocks; each array ``[questions]``.

    ``emitted`` and ``cycles`` leave the prefill and its token out; ``tokens`` and ``seconds`` count everything.
    ``indexed`` sums the zero-based index of each turn's last cycle, which is what the paper's script divides by.
    """

    turns: Array
    indexed: Array
    emitted: Array
    cycles: Array
    tokens: Array
    seconds: Array
    vanilla_tokens: Array
    vanilla_seconds: Array

    def take(self, index: NDArray[np.int64]) -> Sums:
        return Sums(*(getattr(self, field.name)[index] for field in fields(self)))

    @property
    def questions(self) -> int:
        return int(self.turns.shape[-1])


def sums(blocks: Iterable[Block], method_id: str, vanilla: str = "vanilla") -> Sums:
    """Collect the blocks that hold this method; each method is paired with the vanilla run of its own block."""
    return stacked(per_question(blocks, method_id, vanilla).values())


def per_question(blocks: Iterable[Block], method_id: str, vanilla: str = "vanilla") -> dict[str, list[float]]:
    """The fields of ``Sums`` for each question, in the order the questions were met."""
    rows: dict[str, list[float]] = {}
    for block in blocks:
        if method_id not in block.method_ids:
            continue
        row = rows.setdefault(block.question_id, [0.0] * len(fields(Sums)))
        for turn in block.turns_of(method_id):
            row[0] += 1
            row[1] += max(turn.cycles - 1, 0)
            row[2] += turn.cycle_tokens
            row[3] += turn.cycles
            row[4] += turn.tokens
            row[5] += turn.seconds
        for turn in block.turns_of(vanilla):
            row[6] += turn.tokens
            row[7] += turn.seconds
    return rows


def stacked(rows: Iterable[Sequence[float]]) -> Sums:
    """Questions' rows as arrays."""
    width = len(fields(Sums))
    return Sums(*np.array(list(rows), dtype=np.float64).reshape(-1, width).T)


def tau_micro(s: Sums) -> Array:
    """Tokens per cycle over everything: Spec-Bench's MAT, SGLang's accept length. The prefill is not a cycle."""
    return _ratio(s.emitted.sum(-1), s.cycles.sum(-1))


def tau_question(s: Sums) -> Array:
    """Tokens per cycle of each question, averaged; a question without a cycle has none and is left out."""
    return _mean(_ratio(s.emitted, s.cycles))


def tau_paper(s: Sums) -> Array:
    """The paper's tau: each question's tokens over (cycles - 1 per turn), averaged (docs/metrics.md).

    A question none of whose turns took a second cycle has none; ``without`` counts them.
    """
    return _mean(_ratio(s.emitted, s.indexed))


def speedup_paper(s: Sums) -> Array:
    """Mean of the questions' tokens/s over the same mean of vanilla; prefill included."""
    return _ratio((s.tokens / s.seconds).mean(-1), (s.vanilla_tokens / s.vanilla_seconds).mean(-1))


def speedup_total(s: Sums) -> Array:
    """All tokens over all seconds, against vanilla's."""
    ours = s.tokens.sum(-1) / s.seconds.sum(-1)
    return _ratio(ours, s.vanilla_tokens.sum(-1) / s.vanilla_seconds.sum(-1))


def speedup_geomean(s: Sums) -> Array:
    """Geometric mean of the questions' ratios of tokens/s: our headline."""
    ratio = (s.tokens / s.seconds) / (s.vanilla_tokens / s.vanilla_seconds)
    return np.asarray(np.exp(np.log(ratio).mean(-1)))


def tokens_per_s(s: Sums) -> Array:
    """All tokens over all seconds, prefill included."""
    return _ratio(s.tokens.sum(-1), s.seconds.sum(-1))


ESTIMATORS: dict[str, Callable[[Sums], Array]] = {
    function.__name__: function
    for function in (tau_micro, tau_question, tau_paper, speedup_paper, speedup_total, speedup_geomean, tokens_per_s)
}


def without(s: Sums) -> dict[str, int]:
    """How many questions an estimator that averages over questions had to leave out."""
    return {"tau_question": int((s.cycles == 0).sum()), "tau_paper": int((s.indexed == 0).sum())}


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Where there is no cycle there is no ratio: NaN, not infinity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _mean(values: Array) -> Array:
    defined = np.isfinite(values)
    return _ratio(np.where(defined, values, 0.0).sum(-1), defined.sum(-1))
