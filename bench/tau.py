"""Entry point: ``python -m bench.tau [group=option] [key=value]``: tokens per cycle of a cell's methods, untimed.

It takes the settings of ``bench.run`` and measures no speed, so it needs no quiet machine, and trees may be as large as
the paper's. Vanilla's text is decoded once a question; a method's cycles follow from that text where its rule allows,
and are decoded in the ordinary loop elsewhere (``bench.measure.untimed``). Nothing is written: stdout has a table and a
last line of JSON. Exit 0 done, 2 a wrong request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from bench.cli.launch import launch
from bench.cost import plan_status
from bench.plan import grid
from bench.plan.schema import Plan
from bench.report.estimators import Sums
from bench.report.intervals import estimate
from bench.report.output import results_folder
from methods.common.freeze import freeze

SHOWN = ("tau_micro", "tau_question", "tau_paper")


def main() -> None:
    """Compose, decode, count, print."""
    launch(_tau)


def _tau(config: DictConfig) -> int:
    cells = [cell for cell in grid.resolve(config)[0] if not cell.idle]
    results, plan = results_folder(config), freeze(Plan, config.plan, "plan")
    if plan.dry_run:
        return plan_status.price(cells, results, plan)
    from bench.measure.misfits import refuse_misfits  # torch loads only now
    from bench.measure.session import Session
    from bench.measure.untimed import count

    refuse_misfits(cells, results)
    session, rows = Session(), []
    for cell in cells:
        for name, counts in count(cell, session.ready(cell), session.loaded).items():
            sums = _sums(counts.questions)
            row = {"model": cell.model.name, "task": cell.task.name, "T": cell.decode.temperature, "method": name}
            row |= {"questions": sums.questions, "cycles": int(sums.cycles.sum()), "lane": counts.lane}
            for key in SHOWN:
                one = estimate(key, sums)
                row |= {key: one.value, f"{key}_low": one.low, f"{key}_high": one.high}
            rows.append(row)
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".3f"))
    print(json.dumps({"cells": len(cells), "rows": rows}))
    return 0


def _sums(questions: Sequence[Sequence[int]]) -> Sums:
    """Of cycles that nobody timed: estimators of speed are NaN."""
    turns, indexed, emitted, cycles = np.array(questions, dtype=np.float64).T
    untimed = np.full_like(turns, np.nan)
    return Sums(turns, indexed, emitted, cycles, emitted + turns, untimed, untimed, untimed)


if __name__ == "__main__":
    main()
