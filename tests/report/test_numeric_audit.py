"""Tables against an independent reading of the same files: equal to 1e-12, intervals and means included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.plan.cells import VANILLA, Cell, Question
from bench.plan.schema import Style, Table
from bench.records.store import Store
from bench.report import layout, tables
from tests.support.commands import block, cell, turn
from tests.support.numeric_audit import audit


def made_up(results: Path, task: str, seed: int) -> Cell:
    """Nine questions of one or two turns and two repeats, of every kind: long, short, ended by the prefill."""
    rng = np.random.default_rng(seed)
    asked = tuple(Question(f"q{number}", "toy", ("?",) * (1 + number % 2)) for number in range(9))
    made = cell(task={"name": task}, questions=asked, measure={"repeats": 2}, methods={"pld": {}, "lookahead": {}})
    store = Store(made.folder(results))
    with store.writing():
        store.write_session("s", {"hardware": {"cpu": "A CPU", "cores": 2, "gpus": []}})
        for repeat in range(2):
            for question in asked:
                runs = {}
                for name in (VANILLA, "pld", "lookahead"):
                    most = 1 if name == VANILLA else 6
                    runs[name] = [
                        turn(
                            [1, *rng.integers(1, most + 1, rng.integers(0, 12)).tolist()], rng.uniform(0.2, 3), gaps=[]
                        )
                        for _ in question.turns
                    ]
                store.append_block(block(question.id, runs, repeat, made.method_ids, session="s"))
        store.mark_done({"method_ids": list(made.method_ids.values())})
    return made


def test_a_table_equals_an_independent_reading_of_its_records(tmp_path: Path) -> None:
    cells = [made_up(tmp_path, name, seed) for seed, name in enumerate(("one", "two"))]
    report = tables.collect(cells, tmp_path)
    assert report.holes == []
    csv = layout.write(report, Table("toy", "T", "all", ["one", "two"], ["greedy"]), tmp_path, Style("paper"))[1]
    rows = pd.read_csv(csv).set_index(["method", "task"])
    for name in ("pld", "lookahead"):
        found = {one.task.name: audit(one.folder(tmp_path), one.method_ids[name]) for one in cells}
        for task, estimates in found.items():
            for key, (value, low, high) in estimates.items():
                row = rows.loc[(name, task)]
                assert (row[key], row[f"{key}_low"], row[f"{key}_high"]) == pytest.approx((value, low, high), rel=1e-12)
        for key in found["one"]:
            mean = (found["one"][key][0] + found["two"][key][0]) / 2
            assert rows.loc[(name, "mean"), key] == pytest.approx(mean, rel=1e-12)
