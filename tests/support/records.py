"""Finished cells with records made by hand, and changes to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Style, Table
from bench.records.store import Store
from tests.support.commands import block, cell, turn

TABLE = Table("toy", "A title", "all", ["one", "two"], ["greedy"])
PAPER, OURS = Style("paper"), Style("ours")
MACHINE = {"cpu": "A CPU", "cores": 2, "gpus": []}
GPU = {"cpu": "A CPU", "cores": 8, "gpus": [{"name": "H200"}]}


def measured(results: Path, task: str, fast: float = 2.0, hardware: dict[str, Any] = MACHINE, **changes: Any) -> Cell:
    """A finished cell of two questions; pld is ``fast`` times as fast as vanilla, and 1.5 times that on the second."""
    made = cell(task={"name": task}, **changes)
    store = Store(made.folder(results))
    with store.writing():
        store.write_session("s", {"hardware": hardware})
        for number, question in enumerate(made.questions):
            ours = turn([1, 4, 4], 9 / fast / (1 + number / 2), gaps=[])
            runs = {VANILLA: [turn([1] * 9, 9.0, gaps=[])], "pld": [ours]}
            store.append_block(block(question.id, runs, ids=made.method_ids, session="s"))
        store.mark_done({"method_ids": list(made.method_ids.values())})
    return made


def rewritten(one: Cell, results: Path, change: Any) -> None:
    """Change the blocks on the disk, as if they had been recorded so."""
    path = one.folder(results) / "blocks.jsonl"
    blocks = list(map(json.loads, path.read_text().splitlines()))
    path.write_text("".join(json.dumps(each) + "\n" for each in change(blocks)))
