"""Entry point: ``python -m bench.run [group=option] [key=value]``. Exit 0 done, 1 a hole, 2 a wrong request.

A run that a scheduler or Ctrl-C stopped exits with 128 plus the signal; the same command goes on.
"""

from __future__ import annotations

import json
import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bench.cli.launch import launch
from bench.cli.signals import unless_fruitless
from bench.cluster import slurm
from bench.cost import plan_status
from bench.plan import grid
from bench.plan.cells import Cell, marked, untraced
from bench.plan.schema import Launcher, Plan, Style
from bench.records.store import Store
from bench.report.output import finish, results_folder
from methods.common.freeze import freeze


def main() -> None:
    """Compose, plan, run what is missing, print the table; the last line of stdout is JSON."""
    launch(_run)


def _run(config: DictConfig) -> int:
    cells, table, profile = grid.resolve(config)
    results, plan = results_folder(config), freeze(Plan, config.plan, "plan")
    launcher, style = freeze(Launcher, config.launcher, "launcher"), freeze(Style, config.report, "report")
    if plan.dry_run:
        return plan_status.price(cells, results, plan)
    if plan.status:
        return plan_status.progress(cells, results)
    mine = [plan_status.pick(cells, plan.index)] if plan.index is not None else cells
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
        plan_status.refuse_too_large(todo, plan)
        from bench.measure.session import Session  # torch loads only now

        stores = [Store(cell.folder(results)) for cell in todo]
        with unless_fruitless(lambda: sum(len(store.blocks()) + len(store.traces()) for store in stores)):
            failed = bool(Session().run(todo, results))
    if plan.index is not None:  # the table is of all tasks: bench.report, or the command that submitted them
        print(json.dumps({"cell": mine[0].name, "failed": failed}))
        return 1 if failed else 0
    code = finish(cells, table, results, style)
    if launcher.name == "local":
        plan_status.cards(todo, results)
    return max(code, 1 if failed else 0)


def _lacks_something(cell: Cell, store: Store) -> bool:
    return not cell.idle and bool(not marked(cell, store) or untraced(cell, store))


if __name__ == "__main__":
    main()
