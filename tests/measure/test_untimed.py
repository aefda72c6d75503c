"""tau without a clock: the same counts as a timed run records, for replayed methods and for those that decode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.measure.session import Session
from bench.measure.untimed import DECODED, REPLAYED, count
from bench.plan.cells import VANILLA, Question
from bench.records.store import Store
from bench.report.estimators import sums
from methods.loading.model import Source, load_model
from tests.support.commands import cell, in_subprocess, tiny_settings, write_questions
from tests.support.heads import write_eagle

QUESTIONS = tuple(Question(str(n), "toy", turns) for n, turns in enumerate([("One one one?", "And?"), ("Why?",)]))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_counts_are_those_of_a_timed_run(tiny_model_folder: Path, tmp_path: Path, temperature: float) -> None:
    head = write_eagle(tmp_path / "head", load_model(Source("folder", str(tiny_model_folder)), dtype="float32").target)
    weights = {"weights": {"kind": "folder", "id": str(head)}}
    made = cell(
        model={"kind": "folder", "id": str(tiny_model_folder), "revision": None, "device": "cpu"},
        decode={"max_new_tokens": 24, "temperature": temperature},
        measure={"warmup_tokens": 0},
        methods={
            "pld": {},
            "lookahead": {},
            "eagle": {"tree": "2 | 0:2", **weights},
            "eagle2": {"total_tokens": 9, "depth": 3, "top_k": 3, **weights},
        },
        questions=QUESTIONS,
    )
    session = Session()
    assert session.run([made], tmp_path) == []
    blocks = Store(made.folder(tmp_path)).blocks()
    found = count(made, session.ready(made), session.loaded)
    for name, ident in {VANILLA: VANILLA, **made.method_ids}.items():
        timed = sums(blocks, ident)
        columns = zip(timed.turns, timed.indexed, timed.emitted, timed.cycles, strict=True)
        assert found[name].questions == [list(map(int, row)) for row in columns], name
    expected = dict.fromkeys(found, REPLAYED) | {"lookahead": DECODED} | ({"eagle": DECODED} if temperature else {})
    assert {name: one.lane for name, one in found.items()} == expected


def test_the_command_prints_a_table_and_json(tiny_model_folder: Path, tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.jsonl", [["one one one"], ["two two two"], ["three three three"]])
    settings = [*tiny_settings(tiny_model_folder, tmp_path), f"task.path={path}", "task.count=3"]
    result = in_subprocess("method=pld", *settings, "decode.max_new_tokens=12", cwd=tmp_path, module="bench.tau")
    assert result.code == 0, result.err
    rows = json.loads(result.out.splitlines()[-1])["rows"]
    assert [(row["method"], row["questions"], row["lane"]) for row in rows] == [
        ("vanilla", 3, REPLAYED),
        ("pld", 3, REPLAYED),
    ]
    assert rows[0]["tau_micro"] == 1.0
    assert rows[1]["tau_micro_low"] <= rows[1]["tau_micro"] <= rows[1]["tau_micro_high"]
    assert "| pld" in result.out
    assert not (tmp_path / "runs").exists(), "nothing is written"
