"""Entry point: ``python -m bench.run [group=option] [key=value]``. Exit 0 done, 1 a hole, 2 a wrong request.

A run that a scheduler or Ctrl-C stopped exits with 128 plus the signal; the same command goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench import grid, overview, search_path, slurm
from bench.config import Launcher, Plan, Style, Table, freeze
from bench.mistakes import explain
from bench.paths import CONF
from bench.plan import Cell, marked, untraced
from bench.records import DamagedRecordError, Store
from bench.stopping import Stopped, heeding_signals, unless_fruitless
from methods import command_line
from methods.errors import ConfigError


def main() -> None:
    """Compose, plan, run what is missing, print the table; the last line of stdout is JSON."""
    launch(_run)


def launch(task: Callable[[DictConfig], int]) -> None:
    """Run a Hydra task and turn the user's mistakes into one line and exit code 2."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the one line below is ours to write
    if code := _guarded(lambda: command_line.check(sys.argv[1:], CONF)):
        sys.exit(code)
    search_path.register()
    codes = [0]

    def body(config: DictConfig) -> None:
        codes.append(_guarded(lambda: task(config)))
        if codes[-1] and slurm.in_task():
            raise RuntimeError(f"exit code {codes[-1]}; the reason stands above")

    with heeding_signals():
        run = hydra.main(version_base=None, config_path=str(CONF), config_name="config")(body)
        codes.append(_guarded(run))
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
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"error: {what}; what was written before is intact, and the same command goes on", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"stopped by {stopped.signal}; the same command goes on with what is missing", file=sys.stderr)
        return stopped.code
    except KeyboardInterrupt:
        print("stopped; run the same command again to finish what is missing", file=sys.stderr)
        return 130


def _run(config: DictConfig) -> int:
    cells, table, profile = grid.resolve(config)
    results, plan = results_folder(config), freeze(Plan, config.plan, "plan")
    launcher, style = freeze(Launcher, config.launcher, "launcher"), freeze(Style, config.report, "report")
    if plan.dry_run:
        return overview.price(cells, results, plan)
    if plan.status:
        return overview.progress(cells, results)
    mine = [overview.pick(cells, plan.index)] if plan.index is not None else cells
    todo = [cell for cell in mine if _lacks_something(cell, Store(cell.folder(results)))]
    failed = False
    if not todo:
        print(f"nothing new to run: all {len(mine)} cells are done in {results}", file=sys.stderr)
    elif launcher.name == "slurm" and plan.index is None:
        names = {cell.name for cell in todo}
        indices = [index for index, cell in enumerate(cells) if cell.name in names]
        # By its name: profile=auto is another grid on a node with a GPU than where it was submitted.
        given = [each for each in HydraConfig.get().overrides.task if not each.startswith("profile=")]
        failed = slurm.submit(launcher, [*given, f"profile={profile.name}"], indices, results) != 0
    else:
        print(f"profile {profile.name}: {len(todo)} of {len(mine)} cells to run, results in {results}", file=sys.stderr)
        overview.refuse_too_large(todo, plan)
        from bench.session import Session  # torch loads only now

        stores = [Store(cell.folder(results)) for cell in todo]
        with unless_fruitless(lambda: sum(len(store.blocks()) + len(store.traces()) for store in stores)):
            failed = bool(Session().run(todo, results))
    if plan.index is not None:  # the table is of all tasks: bench.report, or the command that submitted them
        print(json.dumps({"cell": mine[0].name, "failed": failed}))
        return 1 if failed else 0
    code = finish(cells, table, results, style)
    if launcher.name == "local":
        overview.cards(todo, results)
    return max(code, 1 if failed else 0)


def _lacks_something(cell: Cell, store: Store) -> bool:
    return not cell.idle and bool(not marked(cell, store) or untraced(cell, store))


def results_folder(config: DictConfig) -> Path:
    """Where records and tables go."""
    if not isinstance(config.results, str) or not config.results:
        raise ConfigError(f"results={config.results} must be a folder, such as results=results")
    return Path(config.results).expanduser()


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


if __name__ == "__main__":
    main()
