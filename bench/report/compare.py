"""Paired tests between two methods on the questions that both answered: speed and tau, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import methods
from bench.plan.cells import Cell
from bench.report.admissible import AdmissibleCell, gather
from bench.report.stats import Array, Comparison, Sums, compare, per_question, stacked
from bench.report.tables import decoding
from methods.common.errors import ConfigError

Pair = tuple[Array, Array]
"""The first method's values and the second's, question by question."""


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
        "\nratio: geometric mean over questions of the first over the second [95 % percentile bootstrap over "
        "questions]; speed is tokens/s over vanilla's of the same block, tau is tokens per cycle. p: two-sided "
        "sign-flip permutation test of the mean log ratio, not corrected for the number of tests.\n\n"
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
        if len(tasks) > 1:
            tasks = [*tasks, ("all", {of: _joined([values[of] for _, values in tasks]) for of in ("speed", "tau")})]
        for task, values in tasks:
            for of, pair in values.items():
                if len(pair[0]):
                    head = {"model": model, "decode": decode, "task": task, "of": of}
                    rows.append(head | _shown(compare(*pair), first, second))
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


def _joined(pairs: Sequence[Pair]) -> Pair:
    firsts, seconds = zip(*pairs, strict=True)
    return np.concatenate(firsts), np.concatenate(seconds)


def _shown(found: Comparison, first: str, second: str) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "questions": found.questions,
        "verdict": found.words(first, second),
    }
