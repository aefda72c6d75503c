"""A sweep of two settings of a method: speedup and tau of each pair, as a map with its numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from bench.plan.cells import Cell
from bench.plan.schema import Style, Table
from bench.report.admissible import gather
from bench.report.estimators import sums
from bench.report.figures.canvas import Drawing, page, styled
from bench.report.intervals import Estimate, estimate, mean

SHOWN = ("speedup_geomean", "tau_micro")


def draw(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """A square for each of the table's variants, means over tasks; its first two settings are its place."""
    evidence = gather(cells, results)
    found: dict[str, dict[str, list[Estimate]]] = {}
    for one in evidence.measured:
        for label in (label for label in one.verdicts if label in table.variants):
            for name in SHOWN:
                each = estimate(name, sums(one.blocks, one.method_ids[label]))
                found.setdefault(label, {}).setdefault(name, []).append(each)
    rows = []
    for label, estimates in found.items():
        row = {"variant": label, **dict(list(table.variants[label].items())[:2])}
        for name, each in ((name, mean(values)) for name, values in estimates.items()):
            row |= {name: each.value, f"{name}_low": each.low, f"{name}_high": each.high}
        rows.append(row)
    numbers = pd.DataFrame(rows)
    figure = page(2.4)
    said = "No records yet."
    if rows:
        best = numbers.loc[numbers[SHOWN[0]].idxmax()]
        said = (
            f"Best {SHOWN[0]}: {best['variant']} with {best[SHOWN[0]]:.2f} [{best[f'{SHOWN[0]}_low']:.2f}, "
            f"{best[f'{SHOWN[0]}_high']:.2f}]; means over {len(cells)} cells."
        )
        with styled():
            for axes, name in zip(figure.subplots(1, len(SHOWN)), SHOWN, strict=True):
                _map(axes, numbers, name)
    return Drawing(figure, numbers, said, evidence.holes, evidence.machine)


def _map(axes: Axes, numbers: pd.DataFrame, name: str) -> None:
    across, down = numbers.columns[1], numbers.columns[2]
    grid = numbers.pivot_table(index=down, columns=across, values=name)
    axes.imshow(grid.to_numpy(), cmap="Greys", vmin=grid.min().min() * 0.8, vmax=grid.max().max() * 1.6, aspect="auto")
    for y, row in enumerate(grid.to_numpy()):
        for x, value in enumerate(row):
            if value == value:
                frame = {"boxstyle": "square", "fill": False} if value == grid.max().max() else None
                axes.annotate(f"{value:.2f}", (x, y), ha="center", va="center", fontsize=7, bbox=frame)
    axes.set_xticks(range(grid.shape[1]), [str(value) for value in grid.columns])
    axes.set_yticks(range(grid.shape[0]), [str(value) for value in grid.index])
    axes.set(xlabel=str(across), ylabel=str(down), title=name)
