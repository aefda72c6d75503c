"""Estimators by name, and intervals from a bootstrap over questions. Needs numpy only: no torch, no model.

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

RESAMPLES = 2000
"""Bootstrap resamples: the interval's ends then move by about a tenth of its half-width between seeds."""

FEW = 10
"""Below this many questions a percentile bootstrap is known to be too narrow, whatever it says."""

PRECISE = 0.05
"""The half-width that ``stability`` counts questions for."""

_HAIR = 1 + 1e-9  # a half-width of 5 % must not read as more than 5 % by rounding
_EXACT, _FLIPS = 12, 20_000


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


@dataclass(frozen=True)
class Estimate:
    """A value, its 95 % percentile interval (None for a single question), and the replicates behind it."""

    value: float
    low: float | None
    high: float | None
    replicates: Array


def estimate(name: str, s: Sums, seed: int = 0) -> Estimate:
    """One estimator with its interval. Questions are resampled, never turns: turns of one question are dependent."""
    function = ESTIMATORS[name]
    value = float(function(s))
    n = s.questions
    if n < 2:
        return Estimate(value, None, None, np.full(RESAMPLES, value))
    index = np.random.default_rng(seed).integers(0, n, size=(RESAMPLES, n))
    return _with_interval(value, np.asarray(function(s.take(index))))


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The unweighted mean over tasks, as the paper's Mean column; tasks are resampled independently.

    Replicates of different tasks are paired by shuffling, since each task's bootstrap uses the same seed.
    """
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(one.replicates) for one in estimates]
    value = float(np.mean([one.value for one in estimates]))
    if any(one.low is None for one in estimates):
        return Estimate(value, None, None, np.full(RESAMPLES, value))
    return _with_interval(value, np.mean(shuffled, axis=0))


def is_stable(one: Estimate, questions: int, bound: float = 0.10) -> bool:
    """Whether the interval is within ±``bound`` of the value and rests on enough questions to be trusted."""
    return one.low is not None and _half_width(one) <= bound * _HAIR and questions >= FEW


def stability(one: Estimate, questions: int, bound: float = 0.10) -> str:
    """Whether the number is stable, in words, and how many questions would pin it to ±5 %."""
    if one.low is None:
        return f"{questions} question: no interval"
    half = _half_width(one)
    finer = "" if half <= PRECISE * _HAIR else f"; ±{PRECISE:.0%} needs about {questions_for(one, questions)}"
    if is_stable(one, questions, bound):
        return f"stable: ±{half:.1%}{finer}"
    if half <= bound * _HAIR:
        return f"±{half:.1%}, but {questions} questions are too few to trust an interval{finer}"
    return f"{questions} questions: too few for ±{bound:.0%} (±{half:.1%}{finer})"


def questions_for(one: Estimate, questions: int, bound: float = PRECISE) -> int | None:
    """How many questions would bring the 95 % interval to ±``bound``; None where there is no interval.

    Its half-width falls with the square root of their number.
    """
    half = _half_width(one)
    return max(int(np.ceil(questions * (half / bound) ** 2 / _HAIR)), 2) if np.isfinite(half) else None


def _half_width(one: Estimate) -> float:
    """Of the interval, as a share of the value; infinite where there is no interval or no value to share."""
    if one.low is None or one.high is None or not one.value:
        return float("inf")
    return (one.high - one.low) / 2 / one.value


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same questions: the geometric mean of the ratios, its interval, and a two-sided p."""

    ratio: float
    low: float | None
    high: float | None
    p: float
    questions: int

    def words(self, first: str, second: str, alpha: float = 0.05) -> str:
        """What the test says. Too few questions cannot say anything: the smallest p they allow is 2 / 2^n."""
        least = 2.0 ** (1 - self.questions)
        if least > alpha:
            return f"{self.questions} questions cannot show a difference (p is {least:.2g} at least)"
        if self.p > alpha:
            return "no difference shown"
        return f"{first} is higher" if self.ratio > 1 else f"{second} is higher"


def compare(first: Array, second: Array, seed: int = 0) -> Comparison:
    """Paired test of two methods' positive per-question values: does the mean log ratio differ from zero?

    A sign-flip permutation test: were the methods exchangeable, each question's ratio could as well be its inverse.
    All 2^n flips up to 12 questions, else 20,000 random ones.
    """
    logs = np.log(first / second)
    n = len(logs)
    rng = np.random.default_rng(seed)
    exact = n <= _EXACT
    if exact:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = rng.choice(np.array([-1, 1]), size=(_FLIPS, n))
    # Rounding must not tell a flip from its mirror image.
    extreme = np.abs(signs @ logs) >= np.abs(logs.sum()) * (1 - 1e-9)
    p = float(extreme.mean()) if exact else float((extreme.sum() + 1) / (_FLIPS + 1))
    value = float(np.exp(logs.mean()))
    if n < 2:
        return Comparison(value, None, None, p, n)
    means = logs[rng.integers(0, n, size=(RESAMPLES, n))].mean(1)
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return Comparison(value, float(low), float(high), p, n)


def _with_interval(value: float, replicates: Array) -> Estimate:
    low, high = np.nanpercentile(replicates, [2.5, 97.5]) if np.isfinite(replicates).any() else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), replicates)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Where there is no cycle there is no ratio: NaN, not infinity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _mean(values: Array) -> Array:
    defined = np.isfinite(values)
    return _ratio(np.where(defined, values, 0.0).sum(-1), defined.sum(-1))
