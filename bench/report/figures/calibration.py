"""Figure 6: the draft's confidence in a node against how often the target agrees.

Only nodes whose prefix was accepted count: elsewhere the target answers a text that is not being written. Accepted
means that the node is the target's own choice (argmax at T=0, the keyed draw at T=1): a rate of min(1, p/q) would be
high where confidence is low, and could not be what the paper plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Style, Table
from bench.report import published
from bench.report.admissible import AdmissibleCell, gather
from bench.report.figures.canvas import Drawing, page, styled
from bench.report.figures.draft_nodes import confidences, draft_nodes
from bench.report.tables import decoding

BINS = 20
KEY = ["model", "decode"]


def draw(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """A panel for each decoding: the rate by bin with its error, the diagonal, and the counts below."""
    evidence = gather(cells, results)
    parts = [_nodes(one, label) for one in evidence.measured for label in one.verdicts if label != VANILLA]
    nodes = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*KEY, "confidence", "hit"])
    groups = list(nodes.groupby(KEY, sort=False))
    numbers = pd.concat([_binned(rows).assign(**dict(zip(KEY, key, strict=True))) for key, rows in groups]) \
        if groups else pd.DataFrame()  # fmt: skip
    figure = page(3.0 * max(nodes["model"].nunique(), 1))
    if groups:
        numbers = numbers[[*KEY, *(name for name in numbers if name not in KEY)]]
        with styled():
            _panels(figure, numbers)
    said = "\n".join(_words(", ".join(key), rows, _binned(rows)) for key, rows in groups) or "No records yet."
    return Drawing(figure, numbers, said, evidence.holes, evidence.machine)


def _nodes(one: AdmissibleCell, label: str) -> pd.DataFrame:
    """Confidence and outcome of every node whose prefix was accepted, by question."""
    rows = []
    for question, nodes in draft_nodes(one, label):
        for parents, hits, confidence in zip(nodes.parents, nodes.hit, confidences(label, nodes), strict=True):
            taken = [True]
            for parent, hit, sure in zip(parents, hits, confidence, strict=True):
                if taken[parent]:
                    rows.append((question, sure, hit))
                taken.append(taken[parent] and bool(hit))
    frame = pd.DataFrame(rows, columns=["question", "confidence", "hit"])
    return frame.assign(model=one.cell.model.name, decode=decoding(one.cell.decode))


def _binned(nodes: pd.DataFrame) -> pd.DataFrame:
    """Twenty bins of width 0.05. The error of a rate is that of a ratio of sums over questions, the clusters here."""
    place = np.minimum((nodes["confidence"].to_numpy() * BINS).astype(int), BINS - 1)
    rows = []
    for index in range(BINS):
        inside = nodes[place == index]
        each = inside.groupby("question", sort=False)["hit"].agg(["sum", "size"])
        count, rate = len(inside), inside["hit"].mean() if len(inside) else np.nan
        spread = ((each["sum"] - rate * each["size"]) ** 2).sum()
        clusters = nodes["question"].nunique()
        error = np.sqrt(spread * clusters / (clusters - 1)) / count if count and clusters > 1 else np.nan
        rows.append({"from": index / BINS, "to": (index + 1) / BINS, "nodes": count,
                     "mean_confidence": inside["confidence"].mean() if count else np.nan,
                     "acceptance": rate, "standard_error": error})  # fmt: skip
    return pd.DataFrame(rows)


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """ECE: the bins' |acceptance - mean confidence|, weighted by their nodes."""
    gaps = (bins["acceptance"] - bins["mean_confidence"]).abs() * bins["nodes"]
    return float(gaps.sum() / bins["nodes"].sum())


def falls(bins: pd.DataFrame) -> list[str]:
    """Neighbouring bins whose rate falls by more than 1.96 standard errors of the difference."""
    known = bins[bins["nodes"] > 0].to_dict("records")
    return [
        f"{low['from']:.2f}-{high['to']:.2f}"
        for low, high in pairwise(known)
        if low["acceptance"] - high["acceptance"] > 1.96 * np.hypot(low["standard_error"], high["standard_error"])
    ]


def _words(name: str, nodes: pd.DataFrame, bins: pd.DataFrame) -> str:
    fallen = falls(bins)
    rising = (
        "the bins rise monotonically within their errors" if not fallen else f"the rate falls at {', '.join(fallen)}"
    )
    ends = f"below 0.05: {bins['acceptance'].iloc[0]:.3f}, above 0.95: {bins['acceptance'].iloc[-1]:.3f}"
    return (
        f"{name}: {len(nodes)} draft nodes with an accepted prefix, ECE {expected_calibration_error(bins):.3f}; "
        f"{ends}; {rising}."
    )


def _panels(figure: Figure, numbers: pd.DataFrame) -> None:
    """Two rows of axes for each model, rates above counts, and a column for each decoding."""
    models, decodes = (list(dict.fromkeys(numbers[name])) for name in KEY)
    grid = figure.subplots(
        2 * len(models), len(decodes), sharex=True, squeeze=False, height_ratios=[3, 1] * len(models)
    )
    for down, model in enumerate(models):
        for across, decode in enumerate(decodes):
            rows = numbers[(numbers["model"] == model) & (numbers["decode"] == decode)]
            above, below = grid[2 * down, across], grid[2 * down + 1, across]
            if len(rows):
                _panel(above, below, rows, f"{model}, {decode}")
            else:
                above.set_axis_off()
                below.set_axis_off()


def _panel(above: Axes, below: Axes, bins: pd.DataFrame, title: str) -> None:
    known = bins[bins["nodes"] > 0]
    above.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
    half = 1.96 * known["standard_error"].fillna(0)
    within = np.minimum(half, [known["acceptance"], 1 - known["acceptance"]])  # a rate below 0 or above 1 is none
    above.errorbar(known["mean_confidence"], known["acceptance"], within, fmt="o",
                   color="black", markersize=3, elinewidth=0.8, capsize=1.5, label="acceptance, 95 %")  # fmt: skip
    printed = published.transcription("figure6")
    if not printed.empty:
        places = [0.025 if "below" in metric else 0.975 for metric in printed["metric"]]
        above.scatter(places, printed["value"].astype(float), marker="D", s=22, facecolors="white", edgecolors="black",
                      linewidths=0.8, zorder=3, label="printed (Vicuna 7B)")  # fmt: skip
    above.set(ylim=(-0.03, 1.03), xlim=(0, 1), title=title, ylabel="acceptance rate")
    above.legend(loc="upper left", frameon=False)
    below.bar(bins["from"], bins["nodes"], 1 / BINS, align="edge", color="0.75", edgecolor="black", linewidth=0.4)
    below.set(yscale="log", xlabel="draft confidence", ylabel="nodes")
