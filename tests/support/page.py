"""Records of a real run of the tiny model, with names, questions and outputs that try to break out of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.measure.session import Session
from bench.plan.cells import Question
from bench.plan.schema import Style, Table
from bench.records.store import Store
from bench.report import layout, tables
from methods.loading.model import Source, load_model
from tests.support.commands import cell
from tests.support.heads import write_eagle

ATTACK = """</script></pre></style><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">"""
NAME = """<img src=x onerror="window.hacked = 1">&amp; 'it'"""  # a folder's name holds no slash
FIGURE = """<svg xmlns="http://www.w3.org/2000/svg" width="400" height="120" onload="window.hacked = 1">
<script>parent.hacked = 1</script><image href="http://127.0.0.1:9/x.png" width="9" height="9"/>
<rect width="400" height="120" fill="#cce"/></svg>"""
QUESTIONS = (
    Question("first", "toy", ("What is one plus one?", f"And two? {ATTACK}")),
    Question(NAME, "toy", (ATTACK,)),
    Question("third", "toy", ("Why?",)),
)


def measure(model_folder: Path, results: Path, *, trace: int) -> Path:
    """One cell, measured, with table and figure drawn; returns the results folder."""
    target = load_model(Source("folder", str(model_folder)), dtype="float32").target
    head = write_eagle(results / "head", target)
    knobs = {"weights": {"kind": "folder", "id": str(head)}, "total_tokens": 12, "depth": 4, "top_k": 4}
    made = cell(
        model={"name": NAME, "kind": "folder", "id": str(model_folder), "revision": None, "device": "cpu"},
        decode={"max_new_tokens": 24},
        measure={"warmup_tokens": 0, "trace": trace},
        methods={"lookahead": {}, "eagle2": knobs},
        questions=QUESTIONS,
    )
    assert Session().run([made], results) == []
    table = Table("toy", ATTACK, "all", ["toy"], ["greedy"])
    layout.write(tables.collect([made], results), table, results, Style("ours"))
    (results / "figures").mkdir()
    (results / "figures" / "figure1.svg").write_text(FIGURE)
    return results


def poison(results: Path) -> list[dict[str, Any]]:
    """Let the model have answered with an attack: every token and text of the traces gets one. Returns the traces."""
    (folder,) = (results / "runs").iterdir()
    traces = Store(folder).traces()
    for trace in traces:
        for turn in trace["turns"]:
            turn["labels"] = {token: f"{label}{ATTACK}" for token, label in turn["labels"].items()}
            for step in turn["steps"]:
                step["text"] += ATTACK
    (folder / "traces.jsonl").write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    return traces
