"""Paired tests between two methods on the questions that both answered: speed and tau, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtr

import methods
from bench.plan.cells import Cell
from bench.report.admissible import AdmissibleCell, gather
from bench.report.estimators import Array, Sums, per_question, stacked
from bench.report.intervals import FEWEST, pooled, quantile, spread
from bench.report.tables import decoding
from methods.common.errors import ConfigError

Pair = tuple[Array, Array]
"""The first method's values and the second's, question by question."""


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same questions: the geometric mean of the ratios, its 95 % interval, and a two-sided p.

    Interval and p come from one t-test of the mean log ratio, so p is below 0.05 exactly where the interval excludes 1;
    both are None where some task has fewer than three questions.
    """

    ratio: float
    low: float | None
    high: float | None
    p: float | None
    questions: int

    def words(self, first: str, second: str, alpha: float = 0.05) -> str:
        """What the test says."""
        if self.p is None:
            return f"{self.questions} questions cannot show a difference"
        if self.p > alpha:
            return "no difference shown"
        return f"{first} is higher" if self.ratio > 1 else f"{second} is higher"


def paired_test(strata: Sequence[Pair]) -> Comparison:
    """Compare two methods' positive per-question values; each task is a stratum, and the mean is over tasks."""
    logs = [np.log(first / second) for first, second in strata]
    centre = float(np.mean([each.mean() for each in logs]))
    questions = sum(map(len, logs))
    if min(map(len, logs)) < FEWEST:
        return Comparison(float(np.exp(centre)), None, None, None, questions)
    errors = [spread(each) / np.sqrt(len(each)) for each in logs]
    error, freedom = pooled(errors, [len(each) - 1 for each in logs])
    half = quantile(freedom) * error
    p = float(2 * stdtr(freedom, -abs(centre) / error)) if error else float(centre == 0.0)
    return Comparison(float(np.exp(centre)), float(np.exp(centre - half)), float(np.exp(centre + half)), p, questions)


def tests(cells: Sequence[Cell], names: Sequence[str], results: Path) -> tuple[str, list[str]]:
    """The page of tests, and the holes.

    Raises:
        ConfigError: if two methods are not named, or a cell does not hold them.
    """
    if len(names) != 2:
        raise ConfigError(f"compare={list(names)} must name two methods, as in compare=[eagle,eagle2]")
    first, second = names
    for name in names:
        labels = list(cells[0].methods) + list(cells[0].without_weights)
        if name not in ("vanilla", *labels):
            raise ConfigError(f"compare names {name!r}, which is not in these cells{methods.hint(name, labels)}")
        if name in cells[0].without_weights:
            raise ConfigError(f"{name} has no weights for model={cells[0].model.name}, so there is nothing to compare")
    evidence = gather(cells, results)
    rows = _rows([one for one in evidence.measured if {first, second} <= set(one.verdicts)], first, second)
    page = [f"# {first} against {second}\n"]
    if rows:
        page.append(f"\n{pd.DataFrame(rows).to_markdown(index=False, floatfmt='.3f')}\n")
    page.append(
        "\nratio: geometric mean over questions of the first over the second [95 % interval]; speed is tokens/s over "
        "vanilla's of the same block, tau is tokens per cycle. Interval and p: two-sided paired t-test of the mean "
        "log ratio, tasks as strata, not corrected for the number of tests.\n\n"
        f"Machine: {evidence.machine}.\n"
    )
    page += ["\nHoles:\n", *(f"- {hole}\n" for hole in evidence.holes)] if evidence.holes else []
    return "".join(page), evidence.holes


def _rows(measured: Sequence[AdmissibleCell], first: str, second: str) -> list[dict[str, Any]]:
    """Each task by itself, then all tasks of a model and decoding together."""
    groups: dict[tuple[str, str], list[tuple[str, dict[str, Pair]]]] = {}
    for one in measured:
        found = groups.setdefault((one.cell.model.name, decoding(one.cell.decode)), [])
        found.append((one.cell.task.name, _values(one, first, second)))
    rows = []
    for (model, decode), tasks in groups.items():
        everything = {of: [values[of] for _, values in tasks] for of in ("speed", "tau")}
        single = [(task, {of: [pair] for of, pair in values.items()}) for task, values in tasks]
        for task, strata_of in [*single, *([("all", everything)] if len(tasks) > 1 else [])]:
            for of, strata in strata_of.items():
                strata = [pair for pair in strata if len(pair[0])]
                if strata:
                    head = {"model": model, "decode": decode, "task": task, "of": of}
                    rows.append(head | _shown(paired_test(strata), first, second))
    return rows


def _values(one: AdmissibleCell, first: str, second: str) -> dict[str, Pair]:
    """Both methods' values on the questions that both answered."""
    of_first, of_second = (per_question(one.blocks, one.method_ids[name]) for name in (first, second))
    both = sorted(set(of_first) & set(of_second))
    a, b = (stacked(rows[question] for question in both) for rows in (of_first, of_second))
    cycled = (a.cycles > 0) & (b.cycles > 0)  # a question answered by the prefill alone has no tau
    return {"speed": (_speed(a), _speed(b)), "tau": (_tau(a, cycled), _tau(b, cycled))}


def _speed(s: Sums) -> Array:
    return (s.tokens / s.seconds) / (s.vanilla_tokens / s.vanilla_seconds)


def _tau(s: Sums, chosen: NDArray[np.bool_]) -> Array:
    return np.asarray(s.emitted[chosen] / s.cycles[chosen])


def _shown(found: Comparison, first: str, second: str) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "questions": found.questions,
        "verdict": found.words(first, second),
    }
