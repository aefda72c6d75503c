"""95 % intervals over questions, by Student's t on the logarithm of an estimator.

Questions are the sample, never turns: turns of one question are dependent. The standard error of an estimator's
logarithm comes from leaving out one question at a time (the jackknife), so a ratio of sums needs no formula of its
own. The interval is then Student's with one degree of freedom fewer than there are questions. A percentile bootstrap of
three questions knows ten resamples, and is far too narrow. How often this one holds the truth: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from bench.report.estimators import ESTIMATORS, Sums

FEWEST = 3
"""Below so many questions there is no interval: two values say next to nothing of their spread."""

ADVISABLE = 10
"""From so many questions on their spread is known well enough to say how many more would do."""

PRECISE = 0.05
"""The half-width that ``stability`` counts questions for."""

_HAIR = 1 + 1e-9  # a half-width of 5 % must not read as more than 5 % by rounding


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; ``low`` and ``high`` are None where there is none.

    ``error`` is the standard error of the value, ``freedom`` the degrees of freedom it was estimated with.
    """

    value: float
    low: float | None = None
    high: float | None = None
    error: float = float("nan")
    freedom: float = 0.0


def estimate(name: str, s: Sums) -> Estimate:
    """One estimator with its interval; no interval below three questions, or where one left out leaves no value."""
    function, n = ESTIMATORS[name], s.questions
    value = float(function(s))
    if n < FEWEST or not 0 < value < np.inf:
        return Estimate(value)
    others = np.array([[j for j in range(n) if j != i] for i in range(n)])
    logs = np.log(function(s.take(others)))
    if not np.isfinite(logs).all():
        return Estimate(value)
    return _interval(value, value * spread(logs) * (n - 1) / np.sqrt(n), n - 1)


def spread(values: np.ndarray) -> float:
    """The sample's standard deviation. Equal values have none, whatever rounding makes of them."""
    found = float(values.std(ddof=1))
    return found if found > 1e-12 * max(1.0, float(np.abs(values).max())) else 0.0


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The unweighted mean over tasks, as the paper's Mean column; tasks are independent samples.

    Degrees of freedom are Welch's and Satterthwaite's (Satterthwaite 1946).
    """
    value = float(np.mean([one.value for one in estimates]))
    if any(one.low is None for one in estimates):
        return Estimate(value)
    error, freedom = pooled([one.error for one in estimates], [one.freedom for one in estimates])
    return _interval(value, error, freedom)


def pooled(errors: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """Standard error and degrees of freedom of the mean of independent values."""
    squares = np.square(errors)
    total = float(squares.sum())
    freedom = total**2 / float((squares**2 / np.array(freedoms)).sum()) if total else float(sum(freedoms))
    return float(np.sqrt(total)) / len(squares), freedom


def quantile(freedom: float) -> float:
    """Student's t that 97.5 % lie below."""
    return float(stdtrit(freedom, 0.975))


def _interval(value: float, error: float, freedom: float) -> Estimate:
    half = quantile(freedom) * error / value
    return Estimate(value, float(value * np.exp(-half)), float(value * np.exp(half)), float(error), freedom)


def is_stable(one: Estimate, bound: float = 0.10) -> bool:
    """Whether there is an interval, within ±``bound`` of the value."""
    return _half_width(one) <= bound * _HAIR


def stability(one: Estimate, questions: int, bound: float = 0.10) -> str:
    """Whether the number is stable, in words, and from ten questions on how many would pin it to ±5 %."""
    if one.low is None:
        return f"{questions} question{'s' * (questions > 1)}: no interval"
    half, needed = _half_width(one), questions_for(one, questions)
    finer = "" if half <= PRECISE * _HAIR or needed is None else f"; ±{PRECISE:.0%} needs about {needed}"
    if is_stable(one, bound):
        return f"stable: ±{half:.1%}{finer}"
    return f"{questions} questions: too few for ±{bound:.0%} (±{half:.1%}{finer})"


def questions_for(one: Estimate, questions: int, bound: float = PRECISE) -> int | None:
    """How many questions would bring the 95 % interval to ±``bound``; None below ten, whose spread says too little.

    Its half-width falls with the square root of their number.
    """
    half = _half_width(one)
    if questions < ADVISABLE or not np.isfinite(half):
        return None
    return max(int(np.ceil(questions * (half / bound) ** 2 / _HAIR)), FEWEST)


def _half_width(one: Estimate) -> float:
    """Of the interval, as a share of the value; infinite where there is no interval or no value to share."""
    if one.low is None or one.high is None or not one.value:
        return float("inf")
    return (one.high - one.low) / 2 / one.value
