"""Paired tests between two methods on the questions that both answered: speed and tau, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import methods
from bench.evidence import Measured, gather
from bench.plan import Cell
from bench.stats import Comparison, compare, per_question, stacked
from bench.tables import decoding
from methods.errors import ConfigError


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
    rows = [row for one in evidence.measured if {first, second} <= set(one.verdicts) for row in _rows(one, *names)]
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


def _rows(one: Measured, first: str, second: str) -> list[dict[str, Any]]:
    of_first, of_second = (per_question(one.blocks, one.method_ids[name]) for name in (first, second))
    both = sorted(set(of_first) & set(of_second))
    a, b = (stacked(rows[question] for question in both) for rows in (of_first, of_second))
    cycled = (a.cycles > 0) & (b.cycles > 0)  # a question answered by the prefill alone has no tau
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {
            "speed": (
                (a.tokens / a.seconds) / (a.vanilla_tokens / a.vanilla_seconds),
                (b.tokens / b.seconds) / (b.vanilla_tokens / b.vanilla_seconds),
            ),
            "tau": ((a.emitted / a.cycles)[cycled], (b.emitted / b.cycles)[cycled]),
        }
    return [
        {"model": one.cell.model.name, "decode": decoding(one.cell.decode), "task": one.cell.task.name, "of": name}
        | _shown(compare(*pair), first, second)
        for name, pair in values.items()
        if len(pair[0])
    ]


def _shown(found: Comparison, first: str, second: str) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "questions": found.questions,
        "verdict": found.words(first, second),
    }
