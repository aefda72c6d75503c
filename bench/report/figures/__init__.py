"""Records -> a figure: SVG for the paper, PNG for a page, its numbers as CSV, and what it says in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.plan.cells import Cell
from bench.plan.schema import Style, Table
from bench.records.store import own_folder
from bench.report.figures import bars, calibration, costs, positions, sweep
from bench.report.figures.canvas import Drawing, render
from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError

DRAWINGS: dict[str, Callable[[Sequence[Cell], Path, Table, Style], Drawing]] = {
    "bars": bars.draw,
    "positions": positions.draw,
    "calibration": calibration.draw,
    "cost": costs.cost,
    "split": costs.split,
    "depth": costs.depth,
    "sweep": sweep.draw,
}


def write(cells: Sequence[Cell], table: Table, results: Path, style: Style) -> tuple[str, list[str], list[Path]]:
    """Draw a table's figure: its page, its holes, and the files written under results/figures (none without numbers).

    Raises:
        ConfigError: for a drawing that does not exist.
    """
    if table.figure not in DRAWINGS:
        raise ConfigError(f"table.figure={table.figure} is not known; choose {', '.join(DRAWINGS)}")
    drawing = DRAWINGS[table.figure](cells, results, table, style)
    text = f"# {table.title}\n\n{drawing.said}\n\nMachine: {drawing.machine}.\n"
    if drawing.holes:
        text += "\nHoles:\n" + "".join(f"- {hole}\n" for hole in drawing.holes)
    if drawing.numbers.empty:
        return text, drawing.holes, []
    partial = bool(drawing.holes) and not table.name.endswith("-partial")
    name = f"{table.name}-partial" if partial else table.name
    text += f"\n{drawing.numbers.to_markdown(index=False, floatfmt='.3f')}\n"
    contents: dict[str, str | bytes] = {
        **render(drawing.figure),
        "csv": drawing.numbers.to_csv(index=False),
        "md": text,
    }
    folder = own_folder(results / "figures")
    paths = []
    for suffix, content in contents.items():
        paths.append(folder / f"{name}.{suffix}")
        write_atomically(paths[-1], content)
    return text, drawing.holes, paths
