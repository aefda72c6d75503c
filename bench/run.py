"""Entry point: ``python -m bench.run [group=option] [key=value]``. Exit 0 done, 1 a hole, 2 a wrong request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench import grid, search_path
from bench.config import Style, Table, freeze
from bench.mistakes import explain
from bench.paths import CONF
from bench.plan import Cell, missing, untraced
from bench.records import DamagedRecordError, Store
from methods.errors import ConfigError


def main() -> None:
    """Compose, plan, run what is missing, print the table; the last line of stdout is JSON."""
    launch(_run)


def launch(task: Callable[[DictConfig], int]) -> None:
    """Run a Hydra task and turn the user's mistakes into one line and exit code 2."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the one line below is ours to write
    search_path.register()
    codes = [0]

    def body(config: DictConfig) -> None:
        codes.append(_guarded(lambda: task(config)))

    codes.append(_guarded(lambda: hydra.main(version_base=None, config_path=str(CONF), config_name="config")(body)()))
    sys.exit(max(codes))


def _guarded(action: Callable[[], int | None]) -> int:
    try:
        return action() or 0
    except (HydraException, OmegaConfBaseException, ConfigError, DamagedRecordError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output left (| head); nothing was lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(
            f"error: {error.filename or 'results'}: {error.strerror}; what was written before is intact",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to finish what is missing", file=sys.stderr)
        return 130


def _run(config: DictConfig) -> int:
    cells, table, profile = grid.resolve(config)
    results = results_folder(config)
    if config.plan.dry_run:
        return _print_plan(cells, results)
    stores = {cell.name: Store(cell.folder(results)) for cell in cells}
    todo = [
        cell
        for cell in cells
        if not cell.idle and (missing(cell, stores[cell.name]) or untraced(cell, stores[cell.name]))
    ]
    failed: list[str] = []
    if todo:
        print(
            f"profile {profile.name}: {len(todo)} of {len(cells)} cells to run, results in {results}", file=sys.stderr
        )
        from bench.session import Session  # torch loads only now

        failed = Session().run(todo, results)
    else:
        print(f"nothing new to run: all {len(cells)} cells are done in {results}", file=sys.stderr)
    return max(finish(cells, table, results, freeze(Style, config.report, "report")), 1 if failed else 0)


def results_folder(config: DictConfig) -> Path:
    """Where records and tables go."""
    if not isinstance(config.results, str) or not config.results:
        raise ConfigError(f"results={config.results} must be a folder, such as results=results")
    return Path(config.results)


def finish(cells: list[Cell], table: Table | None, results: Path, style: Style) -> int:
    """Print (and for a table write) what the records say. 1 if anything is missing or invalid."""
    from bench import layout, tables  # pandas and matplotlib are slow to load, and a plan does not need them

    if table and table.figure:
        from bench import figures

        page, holes, written = figures.draw(cells, table, results, style)
    else:
        report = tables.collect(cells, results, table.name.removesuffix("-partial") if table else "")
        page, holes = layout.markdown(report, table.title if table else cells[0].name, style), report.holes
        written = layout.write(report, table, results, style) if table and not report.rows.empty else []
    print(page)
    print(json.dumps({"cells": len(cells), "holes": holes, "written": [str(path) for path in written]}))
    return 1 if holes else 0


def _print_plan(cells: list[Cell], results: Path) -> int:
    blocks = 0
    for cell in cells:
        lacking = missing(cell, Store(cell.folder(results)))
        blocks += len(lacking)
        failed = Store(cell.folder(results)).failed()
        state = "done" if not lacking else "failed" if failed else f"{len(lacking)} blocks to run"
        print(f"{cell.name}  {', '.join(cell.methods)}  {len(cell.questions)} questions  {state}")
    print(json.dumps({"cells": len(cells), "blocks_to_run": blocks}))
    return 0


if __name__ == "__main__":
    main()
