"""A run end to end on a tiny model: what it leaves, that it resumes, and that a kill costs one block and no truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bench.measure.audit
import methods
from bench.records.block import Turn
from bench.records.store import Store
from methods.base import Request
from methods.common.redact import redact
from methods.pld import PLD
from tests.support.commands import Command, Result, environment, tiny_settings, write_questions

END_OF_TEXT = 2  # of the tiny model
TURNS = [["Hello hello hello?"], ["One, two, one, two?", "And again, again?"], ["Why? Why?"]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


@pytest.fixture
def toy(tiny_model_folder: Path, tmp_path: Path) -> list[str]:
    """One cell of three questions, one of them in two turns; results in ``tmp_path/results``."""
    questions = write_questions(tmp_path / "toy.jsonl", TURNS)
    return [
        *tiny_settings(tiny_model_folder, tmp_path / "results"),
        "task.name=toy",
        f"task.path={questions}",
        "task.count=null",
        "decode.max_new_tokens=12",
    ]


def only_store(results: Path) -> Store:
    (folder,) = (results / "runs").iterdir()
    return Store(folder)


def texts(store: Store) -> dict[tuple[str, str], list[list[int]]]:
    """Output ids of each turn, by question and method; fails if a question was measured twice."""
    found: dict[tuple[str, str], list[list[int]]] = {}
    for block in store.blocks():
        for run in block.runs:
            key = (block.question_id, run.method)
            assert key not in found, f"{key} was measured twice"
            found[key] = [turn.output_ids for turn in run.turns]
    return found


def test_a_run_leaves_config_sessions_blocks_and_a_mark(toy: list[str], command: Command, tmp_path: Path) -> None:
    result = command("method=pld", *toy)
    assert result.code == 0, result.err
    store = only_store(tmp_path / "results")
    names = {path.name for path in store.folder.iterdir() if not path.name.startswith(".owner.")}
    assert names == {"cell.json", "sessions", "blocks.jsonl", "DONE"}
    assert store.folder.name.startswith("tiny-toy-greedy-")
    assert store.cell()["decode"]["max_new_tokens"] == 12
    ((session, facts),) = store.sessions().items()
    assert {"cpu", "cores", "gpus"} <= set(facts["hardware"])
    assert facts["provenance"]["versions"]["torch"]
    assert [block.session for block in store.blocks()] == [session] * 3
    assert store.done() is not None
    assert len(store.done()["method_ids"]) == 1
    assert result.last_line == {"cells": 1, "holes": [], "written": []}


def test_a_turn_stores_raw_facts_that_agree_with_each_other(toy: list[str], command: Command, tmp_path: Path) -> None:
    assert command("method=[pld,lookahead]", *toy).code == 0
    blocks = only_store(tmp_path / "results").blocks()
    assert [len(block.runs[0].turns) for block in blocks] == [1, 2, 1]
    for block in blocks:
        assert [run.method for run in block.runs] == block.order
        assert {len(run.turns) for run in block.runs} == {len(block.runs[0].turns)}
        for run in block.runs:
            for turn in run.turns:
                check_turn(turn, vanilla=run.method == "vanilla")


def check_turn(turn: Turn, *, vanilla: bool) -> None:
    steps = len(turn.emitted)
    assert sum(turn.emitted) == len(turn.output_ids) <= 12
    assert len(turn.rows) == len(turn.drafted) == len(turn.accepted) == len(turn.end_ns) == steps
    assert (turn.emitted[0], turn.rows[0], turn.drafted[0]) == (1, turn.prompt_tokens, 0)
    assert all(1 <= count <= taken + 1 for count, taken in zip(turn.emitted, turn.accepted, strict=True))
    assert all(taken <= drafted < rows for taken, drafted, rows in zip(
        turn.accepted[1:], turn.drafted[1:], turn.rows[1:], strict=True))  # fmt: skip
    assert turn.end_ns == sorted(turn.end_ns)
    assert turn.end_ns[0] > 0
    assert 0 < sum(turn.phases_ns.values()) <= turn.end_ns[-1]
    assert turn.finish in ("eos", "length")
    assert (turn.finish == "length") == (len(turn.output_ids) == 12 and turn.output_ids[-1] != END_OF_TEXT)
    assert turn.gaps == []
    assert turn.peak_bytes > 10**7
    if vanilla:
        assert set(turn.emitted) == {1}
        assert set(turn.drafted) == {0}


class Warned(PLD):
    """Is told at a question that the time limit is near."""

    def begin(self, request: Request, prefill: Any) -> None:
        super().begin(request, prefill)
        if request.question == os.environ["WARNED_AT"]:
            os.kill(os.getpid(), signal.SIGUSR1)


def test_a_requeued_task_that_finishes_no_block_does_not_ask_for_another_run(
    toy: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Warned"))
    for restarts, at, code, said in (
        ("0", "q0", 138, "stopped by SIGUSR1; the same command goes on"),
        ("1", "q1", 138, "stopped by SIGUSR1; the same command goes on"),
        ("2", "q1", 2, "error: the time limit came again before one more block was finished; give the task a longer"),
        ("3", "none", 0, ""),
    ):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        monkeypatch.setenv("WARNED_AT", at)
        result = command("method=pld", *toy)
        assert (result.code, said in result.err) == (code, True)


def test_the_second_run_runs_nothing_and_says_so(toy: list[str], command: Command, tmp_path: Path) -> None:
    first = command("method=pld", *toy)
    store = only_store(tmp_path / "results")
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    second = command("method=pld", *toy)
    assert second.code == 0
    assert "nothing new to run: all 1 cells are done" in second.err
    assert second.out == first.out
    assert {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()} == before


def test_a_method_added_later_makes_blocks_of_its_own_and_leaves_the_others(
    toy: list[str], command: Command, tmp_path: Path
) -> None:
    assert command("method=pld", *toy).code == 0
    store = only_store(tmp_path / "results")
    before = (store.folder / "blocks.jsonl").read_bytes()
    assert command("method=[pld,lookahead]", *toy).code == 0
    after = (store.folder / "blocks.jsonl").read_bytes()
    assert after.startswith(before)
    added = [json.loads(line) for line in after[len(before) :].splitlines()]
    assert [block["question_id"] for block in added] == ["q0", "q1", "q2"]
    assert all(sorted(block["order"]) == ["lookahead", "vanilla"] for block in added)
    assert len(store.sessions()) == 2
    # Vanilla's own runs beside the two methods are of the same text: the numbers pair, the outputs repeat.
    vanilla = [run.turns for block in store.blocks() for run in block.runs if run.method == "vanilla"]
    outputs = [[turn.output_ids for turn in turns] for turns in vanilla]
    assert outputs[:3] == outputs[3:]
    done = store.done()
    assert done is not None
    assert len(done["method_ids"]) == 2
    assert "nothing new to run" in command("method=lookahead", *toy).err


def test_repeats_sample_anew_but_greedy_repeats_itself(toy: list[str], command: Command, tmp_path: Path) -> None:
    for decode in ("greedy", "t1"):
        assert command("method=pld", *toy, "measure.repeats=2", f"decode={decode}").code == 0
    for folder in (tmp_path / "results" / "runs").iterdir():
        first, second = [], []
        for block in Store(folder).blocks():
            outputs = {run.method: [turn.output_ids for turn in run.turns] for run in block.runs}
            assert outputs["pld"] == outputs["vanilla"]
            (second if block.repeat else first).append(outputs["vanilla"])
        assert len(first) == len(second) == 3
        assert (first == second) == ("greedy" in folder.name)


def test_a_killed_run_is_finished_by_the_same_command_with_the_same_text(
    toy: list[str], command: Command, tmp_path: Path
) -> None:
    write_questions(tmp_path / "toy.jsonl", [[f"Question {number}, question {number}?"] for number in range(8)])
    arguments = ["method=pld", "decode=t1", *toy, "decode.max_new_tokens=50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.run", *arguments], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        wait_for_first_block(process, tmp_path / "results")
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    store = only_store(tmp_path / "results")
    assert 0 < len(store.blocks()) < 8
    assert store.done() is None
    with (store.folder / "blocks.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"question_id":"q7","repeat":0,"ru')  # as a kill inside a write leaves it

    finished = command(*arguments)
    assert finished.code == 0, finished.err
    unbroken = command(*arguments, f"results={tmp_path / 'unbroken'}")
    assert unbroken.code == 0
    assert texts(store) == texts(only_store(tmp_path / "unbroken"))
    assert len(texts(store)) == 8 * 2
    assert len(store.sessions()) == 2


def wait_for_first_block(process: subprocess.Popen[bytes], results: Path) -> None:
    for _ in range(6000):
        assert process.poll() is None, "it ended before it could be killed"
        if any(b"\n" in path.read_bytes() for path in results.glob("runs/*/blocks.jsonl")):
            return
        time.sleep(0.01)
    pytest.fail("no block within a minute")


def test_ctrl_c_says_how_to_go_on_and_keeps_what_was_measured(
    toy: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = bench.measure.audit.gaps, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(bench.measure.audit, "gaps", interrupted)
        result = command("method=pld", *toy)
    assert result.code == 130
    assert "stopped; run the same command again" in result.err
    store = only_store(tmp_path / "results")
    assert [block.question_id for block in store.blocks()] == ["q0"]
    assert command("method=pld", *toy).code == 0
    assert len(texts(store)) == 3 * 2


def test_two_runs_of_one_cell_do_not_mix(toy: list[str], command: Command, tmp_path: Path) -> None:
    assert command("method=pld", *toy).code == 0
    store = only_store(tmp_path / "results")
    with store.writing():
        second: Result = command("method=lookahead", *toy)
    assert second.code == 2
    assert "is being written by another process (pid " in second.err.splitlines()[-1]
    assert len(store.blocks()) == 3


def test_a_command_line_is_kept_whole_but_for_secrets() -> None:
    assert redact("decode.max_new_tokens=128") == "decode.max_new_tokens=128"
    assert redact("methods.eagle2.total_tokens=60") == "methods.eagle2.total_tokens=60"
    for secret in (
        "HF_TOKEN=abc",
        "+api_key=abc",
        "password=abc",
        "x.secret_name=abc",
        "id=hf_" + "abc" * 8,
        "{'token': 'abc'}",
    ):
        assert "abc" not in redact(secret)


@pytest.mark.slow
@pytest.mark.parametrize("given", [["profile=auto"], []])
def test_a_submitted_array_counts_the_cells_of_the_grid_that_was_resolved_here(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """On a node with a GPU ``profile=auto`` would be another grid, and index 3 another cell."""
    submitted: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        submitted.append(argv)
        return subprocess.CompletedProcess(argv, 1)

    monkeypatch.setattr("bench.records.hardware.has_fast_bfloat16", lambda: True)  # on any CPU the same profile
    monkeypatch.setattr("bench.cluster.slurm.subprocess.run", run)
    assert command("table=table1", "launcher=slurm", f"results={tmp_path}", *given).code == 1
    (argv,) = submitted
    assert [each for each in argv if each.startswith("profile=")] == ["profile=embedded"]
    assert f"plan.index={','.join(map(str, range(12)))}" in argv
