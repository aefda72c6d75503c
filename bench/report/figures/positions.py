"""Figure 5: how often the node at each position of a small static tree is accepted, a dot for each question.

*Conditional*: given the node's own prefix, whether or not that prefix is what the target chose; the tree's forward
supplies it. At T=0 it is the indicator "the node is the target's argmax", at T=1 min(1, p/q). *Unconditional*: the
node and everything above it are the target's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Style, Table
from bench.records.block import Nodes
from bench.report import published
from bench.report.admissible import AdmissibleCell, gather
from bench.report.figures.canvas import Drawing, page, panels, styled
from bench.report.figures.draft_nodes import confidences, draft_nodes
from bench.report.tables import decoding
from methods.common.errors import ConfigError

UNCONDITIONAL = "unconditional"


def draw(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """A panel for each decoding and definition; the claim to check is about the unconditional rates."""
    evidence = gather(cells, results)
    dots = [row for one in evidence.measured for label in one.verdicts if label != VANILLA for row in _dots(one, label)]
    numbers, figure = _numbers(pd.DataFrame(dots)), page(1.0)
    if dots:
        with styled():
            figure, found = panels(pd.DataFrame(dots), ["decode", "rate"], 2.4)
            for axes, rows in found:
                _strip(axes, rows)
    said = "Dots are questions, bars their mean. A turn's last cycle, whose text is cut, is left out.\n\n"
    return Drawing(figure, numbers, said + _words(numbers), evidence.holes, evidence.machine)


def _dots(one: AdmissibleCell, label: str) -> list[dict[str, object]]:
    """A row for each question, position and rate."""
    by_question: dict[str, list[dict[str, np.ndarray]]] = {}
    tree: list[int] | None = None
    for asked, nodes in draft_nodes(one, label):
        for cycle, parents in enumerate(nodes.parents):
            tree = tree or parents
            if parents != tree:
                raise ConfigError("figure 5 needs one static tree in every cycle; leave table=figure5's settings")
            by_question.setdefault(asked, []).append(_rates(label, nodes, cycle))
    rows = []
    for question, cycles in by_question.items():
        for rate in cycles[0]:
            means = np.mean([each[rate] for each in cycles], axis=0)
            rows += [
                {"model": one.cell.model.name, "decode": decoding(one.cell.decode), "rate": rate,
                 "question": question, "position": f"P{place}", "value": float(value)}
                for place, value in enumerate(means, 1)
            ]  # fmt: skip
    return rows


def _rates(label: str, nodes: Nodes, cycle: int) -> dict[str, np.ndarray]:
    hit = np.array(nodes.hit[cycle], dtype=bool)
    taken = [True]
    for node, parent in enumerate(nodes.parents[cycle]):
        taken.append(bool(hit[node]) and taken[parent])
    found = {"conditional, argmax": hit.astype(float), UNCONDITIONAL: np.array(taken[1:], dtype=float)}
    if nodes.target is not None:
        ratio = np.array(nodes.target[cycle]) / np.maximum(confidences(label, nodes)[cycle], 1e-30)
        found = {"conditional, min(1, p/q)": np.minimum(ratio, 1.0), UNCONDITIONAL: found[UNCONDITIONAL]}
    return found


def _numbers(dots: pd.DataFrame) -> pd.DataFrame:
    """Mean and spread over questions of each position, and what was printed for Vicuna 7B (read off a plot)."""
    if dots.empty:
        return dots
    groups = dots.groupby(["model", "decode", "rate", "position"], sort=False)["value"]
    numbers = groups.agg(mean="mean", std_over_questions="std", questions="size").reset_index()
    printed = published.transcription("figure5")
    if not printed.empty:
        known = dict(zip(printed["metric"].str[-2:], printed["value"], strict=True))
        numbers["printed_vicuna7b"] = numbers["position"].map(known)
    return numbers


def _words(numbers: pd.DataFrame) -> str:
    if numbers.empty:
        return "No records yet."
    lines = []
    for (model, decode), rows in numbers[numbers["rate"] == UNCONDITIONAL].groupby(["model", "decode"], sort=False):
        means = dict(zip(rows["position"], rows["mean"], strict=True))
        first, last = next(iter(means)), list(means)[-1]
        highest, lowest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        holds = (highest, lowest) == (first, last)
        lines.append(
            f"{model}, {decode}, unconditional: the maximum is {highest} ({means[highest]:.3f}), the minimum {lowest} "
            f"({means[lowest]:.3f}); the paper's claim, {first} the highest and {last} the lowest, "
            f"{'holds' if holds else 'does NOT hold'}."
        )
    return "\n".join(lines)


def _strip(axes: Axes, dots: pd.DataFrame) -> None:
    positions = list(dict.fromkeys(dots["position"]))
    for place, position in enumerate(positions):
        values = dots[dots["position"] == position]["value"].to_numpy()
        aside = (np.arange(len(values)) % 9 - 4) * 0.06  # spread, but the same every time
        axes.scatter(place + aside, values, s=7, facecolors="none", edgecolors="0.35", linewidths=0.6)
        axes.hlines(values.mean(), place - 0.34, place + 0.34, color="black", linewidth=1.6)
    axes.set_xticks(range(len(positions)), positions)
    axes.set(ylim=(-0.03, 1.03), ylabel="acceptance rate")
    axes.label_outer()
