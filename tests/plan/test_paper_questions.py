"""``measure=paper`` asks the paper's own questions, known by their bytes, and no others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bench.plan import paper_questions, questions
from bench.plan.paper_questions import FILES, File, checked, where
from bench.plan.schema import Task
from methods.common.errors import ConfigError
from methods.common.paths import CONF
from tests.support.commands import Command

DRY = "plan.dry_run=true"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, whatever this machine's holds."""
    monkeypatch.setenv("DRAFTBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def put(task: str, content: bytes) -> Path:
    path = where(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def as_published(monkeypatch: pytest.MonkeyPatch, task: str, count: int) -> None:
    """As if the authors' file of this task held these questions: theirs are not ours to keep here."""
    rows = [{"question_id": number, "turns": [f"Question {number}?"]} for number in range(count)]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    monkeypatch.setitem(FILES, task, File(FILES[task].path, hashlib.sha256(content).hexdigest()))
    put(task, content)


def test_there_is_a_file_for_each_of_our_tasks_and_its_place_names_its_hash() -> None:
    assert set(FILES) == {path.stem for path in (CONF / "task").glob("*.yaml")}
    assert len({file.sha256 for file in FILES.values()}) == 6
    for task, file in FILES.items():
        assert len(file.sha256) == 64
        assert file.sha256[:12] in where(task).name


def test_what_is_not_here_says_how_to_fetch_it(command: Command) -> None:
    with pytest.raises(ConfigError, match=r"run: draftbench prefetch questions"):
        checked("gsm8k")
    result = command("measure=paper", "task=gsm8k", DRY)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "the paper's questions for task=gsm8k are not here yet" in result.err
    assert result.err.endswith("run: draftbench prefetch questions\n")


def test_other_bytes_are_refused_even_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    as_published(monkeypatch, "nq", 3)
    path = checked("nq")
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(
        ConfigError, match=r"has sha256 [0-9a-f]{64}, the paper's file .* delete it and run: draftbench"
    ):
        checked("nq")


def test_a_task_that_the_paper_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.name=rag is not one of the paper's: mt_bench, .*measure=standard"):
        questions.load(Task("rag", "paper", None))


def test_the_paper_s_files_are_read_like_any_other(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    as_published(monkeypatch, "alpaca", 80)
    assert [one.turns for one in questions.load(Task("alpaca", "paper", None, count=80))][79] == ("Question 79?",)
    result = command("measure=paper", "task=alpaca", "profile=paper", DRY)
    assert result.code == 0, result.err
    assert "80 questions  80 blocks to run" in result.out
    assert command("measure=standard", "task=alpaca", "profile=paper", DRY).out != result.out


@pytest.mark.parametrize("typed", ["task.path=mine.jsonl", "task.source=hub", "task.source=builtin"])
def test_other_questions_are_refused(typed: str, command: Command) -> None:
    result = command("measure=paper", typed, DRY)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"measure=paper takes the paper's own questions and no others; drop {typed}, or choose" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_report_of_what_a_laptop_measured_needs_none_of_them(
    has_gpu: bool, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.records.hardware.has_gpu", lambda: has_gpu)
    monkeypatch.setattr("bench.records.hardware.has_fast_bfloat16", lambda: True)
    result = command("table=table3", f"results={tmp_path}", module="bench.report")
    assert result.code == 1, "nothing was measured: a page of holes"
    assert "profile embedded: 0 of 2 cells" in result.err


def test_a_repository_path_is_named_for_each_file() -> None:
    assert {file.path for file in FILES.values()} == {
        f"eagle/data/{folder}/question.jsonl" for folder in ("mt_bench", "humaneval", "gsm8k", "alpaca", "sum", "qa")
    }
    assert paper_questions.REPOSITORY == "SafeAILab/EAGLE"
