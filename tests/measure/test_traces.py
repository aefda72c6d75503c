"""Traces: the draft trees of what was timed, recorded apart from the clock, and only where asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from bench.records.store import Store, repeats
from methods.base import Context, Draft, Request
from methods.decode.tree import chain
from methods.loading.model import Loaded, Source, load_model
from methods.pld import PLD
from tests.support.commands import Command, tiny_settings, write_questions
from tests.support.heads import write_eagle

TREE = ["methods.eagle2.total_tokens=12", "methods.eagle2.depth=4", "methods.eagle2.top_k=4"]


class Moody(PLD):
    """Answers wrongly from its third turn on: its mask lets the root see its own draft."""

    turns = 0

    def begin(self, request: Request, prefill: Any) -> None:
        super().begin(request, prefill)
        type(self).turns += 1

    def propose(self, context: Context) -> Draft:
        if self.turns <= 2:
            return super().propose(context)
        tokens = torch.tensor([context.ids[-1], (context.ids[-1] + 1) % 200], device=self._device)
        return Draft(tokens, chain(1, self._device), mask=torch.ones(2, 2, dtype=torch.bool, device=self._device))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


@pytest.fixture(scope="session")
def loaded(tiny_model_folder: Path) -> Loaded:
    return load_model(Source("folder", str(tiny_model_folder)), dtype="float32")


@pytest.fixture
def toy(tiny_model_folder: Path, tmp_path: Path, loaded: Loaded) -> list[str]:
    """One cell of three questions, the first in two turns, and an EAGLE head with random weights."""
    questions = write_questions(tmp_path / "toy.jsonl", [["One, two?", "And three?"], ["Why?"], ["Who?"]])
    head = write_eagle(tmp_path / "head", loaded.target)
    return [
        *tiny_settings(tiny_model_folder, tmp_path / "results"),
        *("task.name=toy", f"task.path={questions}", "task.count=null", "decode.max_new_tokens=12"),
        *(f"methods.eagle2.weights={head}", *TREE),
    ]


def store_of(tmp_path: Path) -> Store:
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    return Store(folder)


@pytest.mark.parametrize("decode", ["greedy", "t1"])
@pytest.mark.parametrize("history", ["vanilla", "self"])
def test_a_trace_shows_the_trees_behind_the_timed_tokens(
    decode: str, history: str, toy: list[str], command: Command, tmp_path: Path, loaded: Loaded
) -> None:
    settings = [f"decode={decode}", f"measure.history={history}", "measure.trace=2"]
    result = command("method=[lookahead,eagle2]", *toy, *settings)
    assert result.code == 0, result.err
    store = store_of(tmp_path)
    traces, blocks = store.traces(), store.blocks()
    assert [(one["question_id"], one["method"]) for one in traces] == [
        (question, method) for question in ("q0", "q1") for method in ("lookahead", "eagle2")
    ]
    assert [turn["question"] for turn in traces[0]["turns"]] == ["One, two?", "And three?"]
    steps = 0
    for trace in traces:
        assert repeats(trace, blocks)
        block = next(one for one in blocks if one.question_id == trace["question_id"])
        timed = block.turns_of(trace["method_id"])
        for turn, facts in zip(trace["turns"], timed, strict=True):
            assert [len(step["tokens"]) for step in turn["steps"]] == facts.emitted
            assert [max(len(step["draft"]) - 1, 0) for step in turn["steps"]] == facts.drafted
            assert [max(len(step["path"]) - 1, 0) for step in turn["steps"]] == facts.accepted
            text = loaded.tokenizer.decode(facts.output_ids, clean_up_tokenization_spaces=False)
            assert "".join(step["text"] for step in turn["steps"]) == text
            before = turn["steps"][0]["tokens"][-1]
            for step in turn["steps"][1:]:
                check_tree(step, before, scored=trace["method"] == "eagle2")
                assert {str(token) for token in [*step["draft"], *step["tokens"]]} <= set(turn["labels"])
                before = step["tokens"][-1]
                steps += 1
    assert steps > 20


def check_tree(step: dict[str, Any], root: int, *, scored: bool) -> None:
    """The root is the last token of the text, the path goes down the tree, and its tokens are the ones emitted."""
    draft, parents, path = step["draft"], step["parents"], step["path"]
    assert draft[0] == root
    assert parents[0] == path[0] + parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(parents) if node)
    assert [parents[node] for node in path[1:]] == path[:-1]
    assert [draft[node] for node in path[1:]][: len(step["tokens"])] == step["tokens"][: len(path) - 1]
    if scored:
        scores = [0.0, *step["scores"]]
        assert len(scores) == len(draft) == 13
        assert all(scores[node] <= scores[parents[node]] for node in range(1, len(scores)))
    else:
        assert step["scores"] is None


def test_traces_can_be_asked_for_later_and_change_no_block_and_no_cell(
    toy: list[str], command: Command, tmp_path: Path
) -> None:
    assert command("method=eagle2", *toy).code == 0
    store = store_of(tmp_path)
    before = (store.folder / "blocks.jsonl").read_bytes()
    assert not (store.folder / "traces.jsonl").exists()
    for wanted, there in ((1, 1), (3, 3), (2, 3)):
        result = command("method=eagle2", *toy, f"measure.trace={wanted}")
        assert result.code == 0, result.err
        assert len(store_of(tmp_path).traces()) == there
    assert "nothing new to run" in result.err
    assert (store.folder / "blocks.jsonl").read_bytes() == before
    assert store.done() is not None


def test_a_second_decode_that_went_another_way_is_kept_and_said(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Moody"))
    plain = [setting for setting in toy if not setting.startswith("methods.")]
    # Turn by turn: the warm-up, the one timed turn of the second question, and then its trace.
    settings = ["measure.trace=1", "task.count=1", f"task.path={write_questions(tmp_path / 'one.jsonl', [['Why?']])}"]
    command("method=pld", *plain, *settings)
    store = store_of(tmp_path)
    (trace,) = store.traces()
    assert not repeats(trace, store.blocks())
    (event,) = map(json.loads, (store.folder / "events.jsonl").read_text().splitlines())
    assert event["error"] == "trace of pld on question q0: other tokens than when it was timed"
    assert store.done() is not None, "what was timed stays measured"


def test_a_torn_trace_is_made_again(toy: list[str], command: Command, tmp_path: Path) -> None:
    settings = ["method=eagle2", *toy, "measure.trace=1"]
    assert command(*settings).code == 0
    path = store_of(tmp_path).folder / "traces.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert command(*settings).code == 0
    again = json.loads(path.read_bytes())
    assert {**again, "session": ""} == {**json.loads(whole), "session": ""}


def test_a_negative_count_is_refused(toy: list[str], command: Command) -> None:
    result = command("method=pld", *[one for one in toy if not one.startswith("methods.")], "measure.trace=-1")
    assert result.code == 2
    assert "measure.trace=-1 must be 0 (off) or more" in result.err
