"""Planning: a cell's id hashes what could change a number and nothing else; what is missing is read from records."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import bench.plan.cells
from bench.plan.cells import VANILLA, Question, cell_of, missing
from bench.plan.identity import method_id
from bench.plan.schema import Decode, Hub, Measure, Model, Setup
from bench.records import out_of_memory
from bench.records.block import Block, Failed
from bench.records.store import Store
from tests.support.commands import ROOT, block, cell, environment, turn

PLD = {"pld": {"max_ngram": 3}}
BOTH = {**PLD, "lookahead": {"window": 7}}


def test_ids_are_golden_since_a_changed_hash_would_orphan_every_record_on_disk() -> None:
    assert cell().id == "b7eaf9ea2765"
    other = cell(
        model={"revision": None, "kind": "folder", "id": "models/tiny", "eos_tokens": ["<|eot_id|>"], "context": 2048},
        decode={"name": "t1", "temperature": 1.0, "top_p": 0.9, "top_k": 50, "seed": 7},
        questions=(Question("é-1", "writing", ("Ünïcode ½?", "again"), ("reference",)),),
    )
    assert other.id == "a2801680d13e", "its records hold draws: see bench.plan.cells.DRAWS"
    assert method_id("pld", {"variant": "orig", "max_ngram": 3, "num_draft": 10}) == "021561b27fde"
    assert cell().name == f"tiny-toy-greedy-{cell().id}"
    assert cell().folder(Path("results")) == Path("results/runs") / cell().name


def test_the_id_does_not_depend_on_the_order_in_which_settings_were_given() -> None:
    knobs = {"max_ngram": 3, "num_draft": 10}
    assert method_id("pld", knobs) == method_id("pld", dict(reversed(knobs.items())))
    mirrored = replace(cell(methods=BOTH), methods=dict(reversed(BOTH.items())))
    assert mirrored.id == cell(methods=BOTH).id
    assert mirrored.method_ids == cell(methods=BOTH).method_ids


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"device": "cuda:1"}},
        {"model": {"weights": {"eagle": "org/head"}}},
        {"model": {"settings": {"eagle2": {"total_tokens": 50}}}},
        {"measure": {"questions": "paper"}},
        {"task": {"path": "elsewhere/toy.jsonl"}},
        {"task": {"source": "hub", "hub": Hub("other/set", "train")}},
        {"task": {"count": None}},
        {"measure": {"trace": 3}},
        {"methods": {}},
        {"methods": BOTH},
        {"questions": (Question("a", "other", ("Hello?",), ("ref",)), Question("b", "", ("One?", "Two?")))},
    ],
    ids=[
        "device",
        "heads",
        "settings",
        "where questions lay",
        "path",
        "source",
        "count",
        "trace",
        "no methods",
        "more methods",
        "category and reference",
    ],
)
def test_the_id_ignores_what_cannot_change_a_number(changes: dict[str, Any]) -> None:
    assert cell(**changes).id == cell().id


CHANGED: dict[str, tuple[type, dict[str, Any]]] = {
    "model": (
        Model,
        {
            "name": "other", "kind": "folder", "id": "org/other", "dtype": "bfloat16", "template": "vicuna",
            "revision": "abd", "file": "x.gguf", "sha256": "00", "attention": "eager", "context": 512,
            "runtime": "fused",
            "eos_tokens": ["</s>"],
        },
    ),
    "decode": (
        Decode,
        {"name": "t1", "temperature": 1.0, "top_p": 0.9, "top_k": 40, "max_new_tokens": 33, "seed": 1},
    ),
    "measure": (
        Measure,
        {"name": "paper", "warmup_tokens": 9, "repeats": 2, "audit": False, "history": "self", "nodes": True},
    ),
    "task": (object, {"name": "other"}),
}  # fmt: skip
EACH = [(group, name) for group, (_, values) in CHANGED.items() for name in values]


@pytest.mark.parametrize(("group", "name"), EACH, ids=[f"{group}.{name}" for group, name in EACH])
def test_the_id_changes_with_each_setting_that_matters(group: str, name: str) -> None:
    assert cell(**{group: {name: CHANGED[group][1][name]}}).id != cell().id


def test_no_setting_was_added_without_a_decision_about_the_id() -> None:
    for schema, values in (CHANGED[group] for group in ("model", "decode", "measure")):
        assert {field.name for field in fields(schema)} - {
            "device",
            "weights",
            "settings",
            "trace",
            "questions",
        } == set(values)


A, B = cell().questions


@pytest.mark.parametrize(
    "questions",
    [(A,), (B, A), (A, replace(B, turns=("One?",))), (A, replace(B, turns=("One?", "Two? "))), (A, replace(B, id="c"))],
    ids=["one fewer", "another order", "a turn fewer", "one space more", "another id"],
)
def test_the_id_changes_with_the_questions(questions: tuple[Question, ...]) -> None:
    assert cell(questions=questions).id != cell().id


def test_another_way_of_drawing_is_another_cell_at_t_above_0_and_the_same_when_greedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampled = cell(decode={"temperature": 1.0})
    before = (cell().id, sampled.id)
    monkeypatch.setattr(bench.plan.cells, "DRAWS", bench.plan.cells.DRAWS + 1)
    assert cell().id == before[0]
    assert replace(sampled).id != before[1], "a copy, since an id is computed once"


def test_two_turns_are_not_one_joined_turn() -> None:
    assert Question("a", "", ("x", "y")).sha256 != Question("a", "", ("xy",)).sha256
    assert Question("1", "", ("x",)).sha256 != Question("", "", ("1", "x")).sha256


def record(store: Store, planned: Any, question: str, *names: str, repeat: int = 0) -> None:
    """Append a block of vanilla and these methods, as a session would."""
    store.append_block(block(question, {name: [turn([1])] for name in (VANILLA, *names)}, repeat, planned.method_ids))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def lacking(planned: Any, store: Store) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(work.question.id, work.repeat, work.methods) for work in missing(planned, store)]


def test_a_cell_without_a_folder_lacks_every_block(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert lacking(cell(), store) == [("a", 0, ("pld",)), ("b", 0, ("pld",))]
    assert [work.index for work in missing(cell(), store)] == [0, 1]


def test_after_some_blocks_the_rest_is_missing(store: Store) -> None:
    record(store, cell(), "b", "pld")
    assert lacking(cell(), store) == [("a", 0, ("pld",))]
    record(store, cell(), "a", "pld")
    assert lacking(cell(), store) == []


def test_a_method_added_later_lacks_its_own_blocks_only(store: Store) -> None:
    for question in ("a", "b"):
        record(store, cell(), question, "pld")
    assert lacking(cell(methods=BOTH), store) == [("a", 0, ("lookahead",)), ("b", 0, ("lookahead",))]


def test_a_changed_setting_is_another_method(store: Store) -> None:
    for question in ("a", "b"):
        record(store, cell(), question, "pld")
    assert lacking(cell(methods={"pld": {"max_ngram": 4}}), store) == [("a", 0, ("pld",)), ("b", 0, ("pld",))]


def test_vanilla_alone_is_measured_once_and_any_block_has_it(store: Store) -> None:
    alone = cell(methods={})
    assert lacking(alone, store) == [("a", 0, ()), ("b", 0, ())]
    record(store, alone, "a")
    record(store, cell(), "b", "pld")
    assert lacking(alone, store) == []


def test_each_repeat_is_a_block_of_its_own(store: Store) -> None:
    planned = cell(measure={"repeats": 2})
    record(store, planned, "a", "pld", repeat=1)
    assert lacking(planned, store) == [("a", 0, ("pld",)), ("b", 0, ("pld",)), ("b", 1, ("pld",))]


def test_done_answers_for_the_methods_it_names_and_for_no_other(store: Store) -> None:
    store.mark_done({"method_ids": list(cell().method_ids.values())})
    assert lacking(cell(), store) == []
    assert lacking(cell(methods=BOTH), store) == [("a", 0, ("pld", "lookahead")), ("b", 0, ("pld", "lookahead"))]


def test_a_failed_mark_does_not_stop_the_next_try(store: Store) -> None:
    store.mark_failed({"error": "x"})
    assert len(missing(cell(), store)) == 2
    store.mark_done({"method_ids": list(cell().method_ids.values())})
    assert store.failed() is None


def test_a_method_without_weights_is_named_and_neither_run_nor_missing(store: Store) -> None:
    base = cell()
    knobs = {**PLD, "eagle2": {"depth": 6, "weights": None}, "eagle": {"weights": "org/head"}}
    planned = cell_of(Setup(base.model, base.task, base.decode, base.measure, knobs), base.questions)
    assert planned.without_weights == ("eagle2",)
    assert list(planned.methods) == ["pld", "eagle"]
    assert planned.id == base.id
    assert lacking(planned, store)[0] == ("a", 0, ("pld", "eagle"))
    assert planned.method_ids["eagle"] != method_id("eagle", {"weights": "org/other"})


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["table=table1", "plan.dry_run=true"], ["--help"]], ids=" ".join)
@pytest.mark.parametrize("module", ["bench.run", "bench.report"])
def test_planning_and_help_load_no_torch(arguments: list[str], module: str, tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.argv = [{module!r}, *{arguments!r}, {f'results={tmp_path}'!r}]\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit as stopped: print('CODE', stopped.code)\n"
        "print('HEAVY', sorted({'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment(), check=True
    )
    # A report of nothing is a page of holes, and says so with its exit code.
    expected = 1 if module == "bench.report" and "--help" not in arguments else 0
    assert done.stdout.splitlines()[-2:] == [f"CODE {expected}", "HEAVY []"], done.stdout + done.stderr


def test_a_method_that_got_through_later_lacks_no_memory() -> None:
    def of(question: str, failed: list[str], ran: list[str]) -> Block:
        return block(question, {name: [turn([1])] for name in ran}, failed=[Failed(name, name) for name in failed])

    blocks = [of("a", ["pld", "sps"], ["vanilla"]), of("b", ["sps"], []), of("a", [], ["vanilla", "pld"])]
    assert out_of_memory.recorded(blocks) == {("a", 0): {"sps"}, ("b", 0): {"sps"}}
