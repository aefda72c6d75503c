"""A session: the order and history of a block, and methods that fail, cheat or meet a question too long for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig

import bench.measure.block_runner
import bench.measure.session
import methods
from bench.records.store import Store
from bench.report.estimators import sums
from methods.base import Context, Draft, Request
from methods.decode.tree import chain
from methods.loading.model import Source, load_model
from methods.loading.model_header import Outline
from methods.pld import PLD
from tests.support.commands import Command, tiny_settings, write_questions
from tests.support.heads import write_medusa

NAMES = {"Vanilla": "vanilla", "PLD": "pld", "Lookahead": "lookahead", "Cheating": "pld"}


class Failing(PLD):
    """Goes wrong in its third cycle, when greedy."""

    def begin(self, request: Request, prefill: Any) -> None:
        super().begin(request, prefill)
        self._cycles = 0

    def propose(self, context: Context) -> Draft:
        self._cycles += 1
        if self._cycles == 3 and context.sampling.greedy:
            raise IndexError("the planted failure")
        return super().propose(context)


class Hungry(PLD):
    """Asks for more memory than there is, in the second turn of a question."""

    def propose(self, context: Context) -> Draft:
        if self._asked.question == "q1" and self._asked.turn == 1:
            torch.empty(1 << 60, dtype=torch.uint8)
        return super().propose(context)

    def begin(self, request: Request, prefill: Any) -> None:
        super().begin(request, prefill)
        self._asked = request


class Starving(PLD):
    """Has no memory for anything, warm-up included."""

    def begin(self, request: Request, prefill: Any) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)


class TooLarge(PLD):
    """Does not even load."""

    def __init__(self, *_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")


class Cheating(PLD):
    """Its mask lets the root see its own draft, so the target answers another text than the one committed."""

    def propose(self, context: Context) -> Draft:
        tokens = torch.tensor([context.ids[-1], (context.ids[-1] + 1) % 200], device=self._device)
        return Draft(tokens, chain(1, self._device), mask=torch.ones(2, 2, dtype=torch.bool, device=self._device))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


@pytest.fixture
def tiny(tiny_model_folder: Path, tmp_path: Path) -> list[str]:
    return [*tiny_settings(tiny_model_folder, tmp_path), "decode.max_new_tokens=16"]


@pytest.fixture
def toy(tiny: list[str], tmp_path: Path) -> list[str]:
    questions = [["Hello?"], ["One, two?", "And three, four?"], ["Why?"], ["Who? Who?"]]
    path = write_questions(tmp_path / "toy.jsonl", questions)
    return [*tiny, "task.name=toy", f"task.path={path}", "task.count=null"]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Request]]:
    """Every turn that was really decoded, in the order in which it happened: which method, which request."""
    seen: list[tuple[str, Request]] = []
    real = bench.measure.block_runner.decode

    def decode(target: Any, drafter: Any, request: Request, *more: Any) -> Iterator[Any]:
        seen.append((NAMES[type(drafter).__name__], request))
        return real(target, drafter, request, *more)

    monkeypatch.setattr(bench.measure.block_runner, "decode", decode)
    return seen


def stores(results: Path) -> dict[str, Store]:
    """By the name of the decoding or task in the folder's name."""
    return {folder.name: Store(folder) for folder in sorted((results / "runs").iterdir())}


def test_the_order_of_methods_rotates_by_question_so_that_none_is_always_first(
    toy: list[str], command: Command, tmp_path: Path, decoded: list[tuple[str, Request]]
) -> None:
    assert command("method=[pld,lookahead]", *toy).code == 0
    (store,) = stores(tmp_path).values()
    expected = [
        ["vanilla", "pld", "lookahead"],
        ["pld", "lookahead", "vanilla"],
        ["lookahead", "vanilla", "pld"],
        ["vanilla", "pld", "lookahead"],
    ]
    assert [block.order for block in store.blocks()] == expected
    assert [name for name, _ in decoded] == [*expected[0], *expected[1] * 2, *expected[2], *expected[3]]
    # Turn by turn, not method by method: the first turns of all methods lie next to each other in time.
    assert [request.turn for _, request in decoded] == [0] * 3 + [0] * 3 + [1] * 3 + [0] * 6


def test_a_resumed_block_keeps_the_order_it_would_have_had(
    toy: list[str], command: Command, tmp_path: Path, decoded: list[tuple[str, Request]]
) -> None:
    assert command("method=[pld,lookahead]", *toy).code == 0
    (store,) = stores(tmp_path).values()
    whole = (store.folder / "blocks.jsonl").read_bytes().splitlines(keepends=True)
    (store.folder / "blocks.jsonl").write_bytes(b"".join(whole[:1] + whole[2:]))
    (store.folder / "DONE").unlink()
    decoded.clear()
    assert command("method=[pld,lookahead]", *toy).code == 0
    assert [name for name, _ in decoded] == ["pld", "lookahead", "vanilla"] * 2
    assert [block.order for block in store.blocks()].count(["pld", "lookahead", "vanilla"]) == 1


@pytest.mark.parametrize("history", ["vanilla", "self"])
def test_the_second_turn_follows_vanilla_s_answer_or_the_method_s_own(
    history: str, toy: list[str], command: Command, tmp_path: Path, decoded: list[tuple[str, Request]],
    monkeypatch: pytest.MonkeyPatch, tiny_model_folder: Path,
) -> None:  # fmt: skip
    # Only a method that answers differently can tell the two apart.
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Cheating"))
    command("method=pld", *toy, f"measure.history={history}", "decode.max_new_tokens=24")
    tokenizer = load_model(Source("folder", str(tiny_model_folder))).tokenizer
    (store,) = stores(tmp_path).values()
    answer = {run.method: run.turns[0].output_ids for run in store.blocks()[1].runs}
    assert answer["pld"] != answer["vanilla"]
    prompts = {name: tokenizer.decode(request.prompt_ids) for name, request in decoded if request.turn == 1}
    for name in ("vanilla", "pld"):
        first = answer["vanilla" if history == "vanilla" else name]
        said = tokenizer.decode(first, skip_special_tokens=True).strip()
        expected = f"<|im_start|>user\nOne, two?<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n"
        assert prompts[name].startswith(f"{expected}<|im_start|>user\nAnd three, four?")
    assert (prompts["pld"] == prompts["vanilla"]) == (history == "vanilla")


def test_a_request_carries_the_decoding_of_the_cell_and_the_key_of_its_draws(
    toy: list[str], command: Command, decoded: list[tuple[str, Request]]
) -> None:
    assert command("method=pld", "decode=t1", "decode.top_p=0.9", "decode.seed=5", "measure.repeats=2", *toy).code == 0
    for _, request in decoded:
        assert request.max_new_tokens == 16
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 0.9, 0, 5)
        assert request.eos_ids
    assert [request.question for _, request in decoded][::2] == [
        *("q0", "q1", "q1", "q2", "q3"),
        *("q0#1", "q1#1", "q1#1", "q2#1", "q3#1"),
    ]


def test_every_method_warms_up_once_and_no_warm_up_is_recorded(
    tiny: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[str] = []
    real = bench.measure.session.decode

    def decode(target: Any, drafter: Any, request: Request, *more: Any) -> Any:
        assert request.question == "warm-up"
        assert (request.max_new_tokens, request.eos_ids) == (8, frozenset())
        warmed.append(NAMES[type(drafter).__name__])
        return real(target, drafter, request, *more)

    monkeypatch.setattr(bench.measure.session, "decode", decode)
    assert command("table=table1", "decode=greedy", "task=[gsm8k,nq]", "method=pld", *tiny, "task.count=1").code == 0
    assert warmed == ["vanilla", "pld"]
    assert all(len(store.blocks()) == 1 for store in stores(tmp_path).values())


def test_a_method_that_fails_is_recorded_and_the_other_cells_still_run(
    tiny: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["table=table1", "task=nq", "method=pld", "task.count=2", *tiny]
    with monkeypatch.context() as patch:
        patch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Failing"))
        result = command(*arguments)
    assert result.code == 1
    greedy, t1 = stores(tmp_path).values()
    assert greedy.done() is None
    failed = greedy.failed()
    assert failed is not None
    assert failed["error"] == "IndexError: the planted failure"
    (event,) = map(json.loads, (greedy.folder / "events.jsonl").read_text().splitlines())
    assert "Traceback" in event["traceback"]
    assert "in propose" in event["traceback"]
    assert event["session"] in greedy.sessions()
    assert greedy.blocks() == [], "half a block is no block"
    assert t1.done() is not None
    assert len(t1.blocks()) == 2
    assert result.last_line["holes"] == [f"{greedy.folder.name}: IndexError: the planted failure"]

    repaired = command(*arguments)
    assert repaired.code == 0
    assert greedy.failed() is None
    assert greedy.done() is not None


def test_a_method_without_memory_for_a_question_is_left_out_of_it_with_vanilla_s_run_and_the_others_stay(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["method=[pld,lookahead]", *toy]
    with monkeypatch.context() as patch:
        patch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Hungry"))
        result = command(*arguments)
        (store,) = stores(tmp_path).values()
        assert result.code == 1
        assert "out of memory in pld" in result.err
        first = store.blocks()
        assert [len(block.runs) for block in first] == [3, 2, 3, 3], "the block keeps what the others measured"
        (short,) = first[1].failed
        assert short.method == "pld"
        assert "can't allocate memory" in short.error
        assert store.failed() is None
        done = store.done()
        assert done is not None
        assert len(done["method_ids"]) == 1
        (hole,) = result.last_line["holes"]
        assert hole.endswith("pld: out of memory on 1 of 4 questions (q1), which are left out of its row, with "
                             "vanilla's runs of them")  # fmt: skip

        grid, _, _ = result.out.partition("| method")
        rows = {line.split("|")[1].strip(): line for line in grid.splitlines() if line.startswith("| ")}
        assert rows["pld"].count("(without 1: out of memory)") == 2, "speedup and tau"
        assert "out of memory" not in rows["lookahead"] + rows["vanilla"]
        hurt, whole = (
            sums(first, next(run.method_id for run in first[0].runs if run.method == name))
            for name in ("pld", "lookahead")
        )
        assert (hurt.questions, whole.questions) == (3, 4)
        assert hurt.vanilla_tokens.sum() == whole.vanilla_tokens[[0, 2, 3]].sum(), "both arms lose the same questions"
        assert hurt.vanilla_seconds.sum() == whole.vanilla_seconds[[0, 2, 3]].sum()

        assert command(*arguments).code == 1  # it tries again, and writes nothing that is not new
        assert store.blocks()[:4] == first
        assert command("method=pld", *toy).code == 1
        assert len(store.blocks()) == 4

    assert command(*arguments).code == 0
    assert [run.method for run in store.blocks()[4].runs] == ["pld", "vanilla"]
    assert "out of memory" not in command(*arguments, module="bench.report").out


def test_a_method_without_memory_for_anything_has_no_row_and_the_others_have_theirs(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Starving"))
    result = command("method=[pld,lookahead]", *toy)
    assert result.code == 1
    rows = [line for line in result.out.splitlines() if line.startswith("| ")]
    assert not any(line.startswith("| pld") for line in rows)
    assert any(line.startswith("| lookahead") for line in rows)
    assert "pld: out of memory on 4 of 4 questions (q0, q1, q2, ...)" in result.last_line["holes"][0]


def test_a_method_that_does_not_fit_beside_the_model_is_one_line(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:TooLarge"))
    result = command("method=pld", *toy)
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        "error: tiny with pld does not fit the memory here (CUDA out of memory. Tried to allocate 2.00 GiB.); take "
        "fewer methods, or a smaller model.dtype"
    )


def test_a_tokenizer_without_the_template_s_needs_is_refused_before_any_weight_is_read(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_folder: Path
) -> None:
    folder = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    facts = json.loads(path.read_text())
    facts.pop("chat_template", None)
    path.write_text(json.dumps(facts))
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read")
    )
    result = command("method=pld", *toy, f"model.id={folder}")
    assert result.code == 2
    assert "model.template=tokenizer, but this tokenizer brings no chat template" in result.err


def test_a_baseline_without_memory_fails_its_cell(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "vanilla", methods.Row(f"{__name__}:Hungry"))
    result = command("method=lookahead", *toy)
    assert result.code == 1
    (store,) = stores(tmp_path).values()
    failed = store.failed()
    assert failed is not None
    assert "can't allocate memory" in failed["error"]
    assert len(store.blocks()) == 1


def test_a_failure_is_told_on_stderr_since_stdout_is_for_the_table_and_one_line_of_json(
    toy: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Failing"))
    result = command("method=pld", *toy)
    assert "failed: IndexError: the planted failure" in result.err
    assert "failed: " not in result.out


@pytest.mark.parametrize("decode", ["greedy", "t1"])
def test_a_method_that_is_not_lossless_is_a_hole_however_fast_it_is(
    decode: str, toy: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Cheating"))
    result = command("method=[pld,lookahead]", f"decode={decode}", *toy)
    assert result.code == 1
    (hole,) = result.last_line["holes"]
    assert " pld: not lossless (identical " in hole
    assert "VIOLATION" in hole
    assert "largest gap" in hole
    rows = [line for line in result.out.splitlines() if line.startswith("| ")]
    assert not any(line.startswith("| pld") for line in rows)
    assert any(line.startswith("| vanilla") for line in rows)
    assert any(line.startswith("| lookahead") for line in rows)


def test_a_prompt_too_long_for_the_model_costs_its_own_cell_only(
    tiny: list[str], command: Command, tmp_path: Path
) -> None:
    result = command("table=table1", "task=[cnn_dm,nq]", "decode=greedy", "method=pld", "task.count=1",
                     "model.context=600", *tiny)  # fmt: skip
    assert result.code in (1, 2)
    assert "does not fit a context of 600" in result.out + result.err
    by_task = {name.split("-")[1]: store for name, store in stores(tmp_path).items()}
    assert len(by_task["nq"].blocks()) == 1
    assert by_task["cnn_dm"].failed() is not None


def test_a_full_disk_is_said_in_one_line_and_the_run_can_go_on_later(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bench.records.store, "_append", full)
        patch.setattr(bench.records.store, "write_atomically", full)
        try:
            result = command("method=pld", *toy)
        except OSError as error:
            pytest.fail(f"a traceback reached the user: {error!r}")
    assert result.code in (1, 2)
    assert "No space left on device" in result.err
    assert command("method=pld", *toy).code == 0


def test_a_wrong_head_is_refused_before_any_model_loads(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_medusa(tmp_path / "head", Outline(LlamaConfig(hidden_size=64, vocab_size=10)))
    monkeypatch.setattr(bench.measure.session, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = command("method=[pld,medusa]", f"methods.medusa.weights={head}", *toy)
    assert result.code == 2
    assert f"{head / 'medusa_lm_head.pt'} is not a medusa head for this model: " in result.err
    assert not list(tmp_path.rglob("blocks.jsonl"))
