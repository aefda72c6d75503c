"""Entry point: ``python -m bench.report [table=...] [compare=[a,b]]``: records to tables and page, without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from bench.cli.launch import launch
from bench.plan import grid
from bench.plan.cells import Cell, missing
from bench.plan.paper_questions import NotFetchedError
from bench.plan.schema import Style, Table
from bench.records.store import Store
from bench.report import page
from bench.report.output import finish, results_folder
from methods.common.freeze import freeze


def _report(config: DictConfig) -> int:
    style, results = freeze(Style, config.report, "report"), results_folder(config)
    cells, table = _recorded(config, results)
    if config.compare:
        return _compare(config, cells, results)
    code = finish(cells, table, results, style)
    print(f"wrote {page.write(results)}", file=sys.stderr)
    return code


def _compare(config: DictConfig, cells: list[Cell], results: Path) -> int:
    from bench.report import compare

    text, holes = compare.tests(cells, [str(name) for name in config.compare], results)
    print(text)
    print(json.dumps({"cells": len(cells), "holes": holes}))
    return 1 if holes else 0


def _recorded(config: DictConfig, results: Path) -> tuple[list[Cell], Table | None]:
    """The cells that are meant. ``profile=auto`` is the one that was run, not the one this machine would run.

    The paper's cells have no ids before its questions are fetched, and then no records here either.
    """
    if config.profile.name != "auto":
        return grid.resolve(config)[:2]
    choices: list[tuple[str, list[Cell], Table | None]] = []
    absent: list[NotFetchedError] = []
    for name in grid.profiles_here():
        try:
            choices.append((name, *grid.resolve(config, name)[:2]))
        except NotFetchedError as error:
            absent.append(error)
    if not choices:
        raise absent[0]
    name, cells, table = max(choices, key=lambda choice: _done(choice[1], results))
    print(f"profile {name}: {_done(cells, results)} of {len(cells)} cells in {results}", file=sys.stderr)
    return cells, table


def _done(cells: list[Cell], results: Path) -> int:
    return sum(not missing(cell, Store(cell.folder(results))) for cell in cells)


def main() -> None:
    """Redraw from the records; exit 1 and a list where cells are missing or invalid, 2 if the request was wrong."""
    launch(_report)


if __name__ == "__main__":
    main()
