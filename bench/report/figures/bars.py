"""Figures 1 and 2: speedup by model and method, our bars with intervals, the printed values as markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerTuple

from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Style, Table
from bench.report import published, tables
from bench.report.figures.canvas import HATCHES, INKS, MARKERS, Drawing, page, shown, styled
from bench.report.layout import MEANING, SHOWN, ordered


def draw(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """Measured models first, then those that are only printed: a speedup is never compared across machines."""
    name = SHOWN[style.estimator][0]
    report = tables.collect(cells, results)
    printed = published.numbers(table.name.removesuffix("-partial"))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in report.rows.to_dict("records"):
        if row["method"] != VANILLA and row["lossless"] != tables.NO_WEIGHTS:
            values = {"value": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}
            rows[row["model"], row["method"]] = {"model": row["model"], "method": row["method"], **values}
    measured = bool(rows)
    for (model, _, method, _, metric), number in printed.items():
        if metric == "speedup_paper" and measured:
            row = rows.setdefault((model, method), {"model": model, "method": method})
            row |= {"printed": number.value, "source": number.source}
    numbers = pd.DataFrame(list(rows.values())).reindex(columns=["model", "method", "value", "low", "high", "printed"])
    figure = page(2.5)
    if measured:
        with styled():
            _bars(figure.subplots(), numbers, name)
    said = (
        f"{name}: {MEANING[name]}, with 95 % intervals over questions. White markers: the values printed "
        "in arXiv 2406.16858v2, measured on other machines and, where a group has no bars, on models not measured here."
    )
    return Drawing(figure, numbers, said, report.holes, report.machine)


def _bars(axes: Axes, numbers: pd.DataFrame, name: str) -> None:
    methods = ordered(list(numbers["method"]))
    models = list(dict.fromkeys(numbers["model"]))
    width = 0.84 / len(methods)
    handles: list[Any] = []
    for index, method in enumerate(methods):
        rows = numbers[numbers["method"] == method]
        places = np.array([models.index(model) for model in rows["model"]]) + (index - (len(methods) - 1) / 2) * width
        ink, hatch = INKS[index % len(INKS)], HATCHES[index % len(HATCHES)]
        bars = axes.bar(
            places, rows["value"].fillna(0), width, color=ink, hatch=hatch, edgecolor="black", linewidth=0.4
        )
        some = rows["low"].notna().to_numpy()
        errors = [(rows["value"] - rows["low"])[some], (rows["high"] - rows["value"])[some]]
        axes.errorbar(
            places[some], rows["value"][some], errors, fmt="none", ecolor="black", elinewidth=0.8, capsize=1.5
        )
        points = axes.scatter(places, rows["printed"], marker=MARKERS[index % len(MARKERS)], s=16, color="white",
                              edgecolors="black", linewidths=0.7, zorder=3)  # fmt: skip
        handles.append((bars[0], points))
    axes.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    axes.set_xticks(range(len(models)), [published.printed("model", model) for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_ylabel(name)
    axes.legend(handles, [shown(method) for method in methods], handler_map={tuple: HandlerTuple(ndivide=None)},
                ncols=len(methods), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)  # fmt: skip
