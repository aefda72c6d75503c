"""What every figure shares: a page of a paper's width, ink for a grey printer, and bytes that do not change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.plan.identity import registered
from bench.report import published

WIDTH = 7.0
"""Inches: the text of a two-column page."""

_STYLE: Any = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "draftbench",  # ids in the SVG are random otherwise
    "svg.fonttype": "path",
}

INKS = ["0.15", "0.85", "0.45", "0.70", "0.30", "0.95", "0.60", "0.05"]
HATCHES = ["", "////", "", "..", "xxxx", "\\\\\\\\", "", "++++"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
LINES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (7, 2))]


Panels = list[tuple[Axes, pd.DataFrame]]


@dataclass(frozen=True)
class Drawing:
    """A figure, the numbers in it, what they say in words, and what is missing."""

    figure: Figure
    numbers: pd.DataFrame
    said: str
    holes: list[str] = field(default_factory=list)
    machine: str = "no records"


def page(height: float) -> Figure:
    """An empty page of ``WIDTH`` x ``height`` inches that lays itself out."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def styled() -> AbstractContextManager[None]:
    """The context in which axes are made, so that they take our sizes and fonts."""
    return mpl.rc_context(_STYLE)


def panels(numbers: pd.DataFrame, columns: Sequence[str], height: float) -> tuple[Figure, Panels]:
    """A page with a row of axes for each model and a column for each combination of ``columns`` that occurs.

    Returns it with the axes and the numbers of each; axes without numbers are left blank.
    """
    models = list(dict.fromkeys(numbers["model"]))
    across = list(numbers[list(columns)].drop_duplicates().itertuples(index=False, name=None))
    figure = page(height * len(models))
    grid = figure.subplots(len(models), len(across), sharey="row", squeeze=False)
    found: Panels = []
    for row, model in zip(grid, models, strict=True):
        for axes, key in zip(row, across, strict=True):
            chosen = numbers[numbers["model"] == model]
            for name, value in zip(columns, key, strict=True):
                chosen = chosen[chosen[name] == value]
            if chosen.empty:
                axes.set_axis_off()
                continue
            axes.set_title("\n".join([f"{model}, {key[0]}", *key[1:]]))
            found.append((axes, chosen))
    return figure, found


def render(figure: Figure) -> dict[str, bytes]:
    """SVG and PNG, equal bytes for equal figures: no dates, no versions, no random ids."""
    canvas = FigureCanvasAgg(figure)
    found = {}
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        buffer = BytesIO()
        with mpl.rc_context(_STYLE):
            canvas.print_figure(buffer, format=suffix, dpi=200, metadata=metadata)
        found[suffix] = buffer.getvalue()
    return found


def shown(label: str) -> str:
    """A row's name as the field writes it: EAGLE-2 for eagle2."""
    name = published.printed("method", label)
    return name if name != label else label.replace(registered(label), published.printed("method", registered(label)))
