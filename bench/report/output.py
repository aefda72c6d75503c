"""What the records of a command's cells say: printed, and for a table or figure written."""

from __future__ import annotations

import json
from pathlib import Path

from omegaconf import DictConfig

from bench.plan.cells import Cell
from bench.plan.schema import Style, Table
from methods.common.errors import ConfigError


def results_folder(config: DictConfig) -> Path:
    """Where records and tables go."""
    if not isinstance(config.results, str) or not config.results:
        raise ConfigError(f"results={config.results} must be a folder, such as results=results")
    return Path(config.results).expanduser()


def finish(cells: list[Cell], table: Table | None, results: Path, style: Style) -> int:
    """Print (and for a table write) what the records say. 1 if anything is missing or invalid."""
    from bench.report import layout, tables  # pandas and matplotlib are slow to load, and a plan does not need them

    if table and table.figure:
        from bench.report import figures

        page, holes, written = figures.write(cells, table, results, style)
    else:
        report = tables.collect(cells, results, table.name.removesuffix("-partial") if table else "")
        page, holes = layout.markdown(report, table.title if table else cells[0].name, style), report.holes
        written = layout.write(report, table, results, style) if table and not report.rows.empty else []
    print(page)
    print(json.dumps({"cells": len(cells), "holes": holes, "written": [str(path) for path in written]}))
    return 1 if holes else 0
