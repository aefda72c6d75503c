"""Questions: the JSONL format with every way it can be wrong, the six built-in sets, and data sets in hub layout."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan import questions as tasks
from bench.plan.cells import Question
from bench.plan.schema import Hub, Task
from methods.common.errors import ConfigError

ROWS = [
    {"question_id": 81, "category": "writing", "turns": ["One?", "Two?"], "reference": ["r1", "r2"]},
    {"question_id": "b/2", "turns": ["Ünïcode \u2028 ½?\nsecond line"], "reference": "r"},
]
QUESTIONS = [
    Question("81", "writing", ("One?", "Two?"), ("r1", "r2")),
    Question("b/2", "", ("Ünïcode \u2028 ½?\nsecond line",), ("r",)),
]
LINES = [json.dumps(row, ensure_ascii=False) for row in ROWS]
BUILT_IN = ["mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "nq"]


def task(name: str = "toy", source: str = "builtin", **more: Any) -> Task:
    return Task(name=name, source=source, hub=more.pop("hub", None), **more)


def file_of(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(LINES),
        "\n".join(LINES) + "\n",
        "\n\n" + "\n \n".join(LINES) + "\n\t\n",
        "\r\n".join(LINES) + "\r\n",
        "\ufeff" + "\n".join(LINES),
        "\ufeff" + "\r\n\r\n".join(LINES) + "\r\n",
        "\n".join(json.dumps(row) for row in ROWS),
    ],
    ids=["no last newline", "plain", "empty lines", "CRLF", "BOM", "BOM and CRLF", "escaped"],
)
def test_the_same_questions_however_the_file_was_saved(content: str, tmp_path: Path) -> None:
    assert tasks.read_jsonl(file_of(tmp_path, content)) == QUESTIONS


GOOD = json.dumps({"question_id": 1, "turns": ["x"]})
WRONG = {
    "not json": ('{"question_id": 2, "turns": ["x"]', "not JSON"),
    "single quotes": ("{'question_id': 2}", "not JSON"),
    "a list": ("[1]", "needs the keys question_id and turns"),
    "no id": ('{"turns": ["x"]}', "needs the keys question_id and turns"),
    "no turns": ('{"question_id": 2, "turn": ["x"]}', "needs the keys question_id and turns"),
    "turns a string": ('{"question_id": 2, "turns": "x"}', "turns must be a list of non-empty strings"),
    "no turn": ('{"question_id": 2, "turns": []}', "turns must be a list of non-empty strings"),
    "an empty turn": ('{"question_id": 2, "turns": ["x", " "]}', "turns must be a list of non-empty strings"),
    "a number as turn": ('{"question_id": 2, "turns": [3]}', "turns must be a list of non-empty strings"),
    "an id that is a list": ('{"question_id": [2], "turns": ["x"]}', "question_id must be a number or a string"),
    "an id that is null": ('{"question_id": null, "turns": ["x"]}', "question_id must be a number or a string"),
    "an id that is a truth value": (
        '{"question_id": true, "turns": ["x"]}',
        "question_id must be a number or a string",
    ),
    "an id that is no number": ('{"question_id": NaN, "turns": ["x"]}', "question_id must be a number or a string"),
    "an id of 5,000 digits": (f'{{"question_id": {"9" * 5000}, "turns": ["x"]}}', "not JSON"),
    "only an id": ('{"question_id": 2}', "needs the keys question_id and turns"),
    "a number": ("3", "needs the keys question_id and turns"),
    "NUL bytes": ("\0" * 9, "not JSON"),
    "brackets without end": (f'{{"question_id": 2, "turns": {"[" * 100_000}', "not JSON"),
    "half a surrogate pair": (r'{"question_id": 2, "turns": ["\ud800?"]}', "holds half of a surrogate pair"),
    "half a pair in an id": (r'{"question_id": "\udfff", "turns": ["x"]}', "holds half of a surrogate pair"),
    "a list as category": ('{"question_id": 2, "turns": ["x"], "category": [1]}', "category must be a string"),
    "a duplicate": ('{"question_id": 1, "turns": ["y"]}', "question_id 1 stands already on line 1"),
    "a duplicate as text": ('{"question_id": "1", "turns": ["y"]}', "question_id 1 stands already on line 1"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_line_is_said_with_its_number(kind: str, tmp_path: Path) -> None:
    line, message = WRONG[kind]
    path = file_of(tmp_path, f"{GOOD}\n\n{line}\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}:3: {message}") as error:
        tasks.load(task(source="file", path=str(path)))
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_at_all_is_named(tmp_path: Path) -> None:
    for content, message in (
        (b"", ": holds no questions"),
        (b"\n \n", ": holds no questions"),
        (b'{"question_id": 1, "turns": ["caf\xe9"]}', ":1: not UTF-8; save the file as UTF-8"),
        ("\n".join(LINES).encode("utf-16"), ":1: not UTF-8; save the file as UTF-8"),
    ):
        path = file_of(tmp_path, content)
        with pytest.raises(ConfigError, match=re.escape(f"{path}{message}")):
            tasks.read_jsonl(path)
    with pytest.raises(ConfigError, match=r"task\.path=.*none\.jsonl cannot be read: No such file"):
        tasks.read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"/dev/zero is a device or a pipe; give a file, which can be read again"):
        tasks.read_jsonl(Path("/dev/zero"))
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(2 << 30)  # of no blocks on the disk
    with pytest.raises(ConfigError, match=r"huge\.jsonl is 2\.1 GB; give the questions alone"):
        tasks.read_jsonl(tmp_path / "huge.jsonl")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        tasks.read_jsonl(tmp_path)
    with pytest.raises(ConfigError, match=r"task\.name=toy has no built-in questions; give task\.path=FILE\.jsonl"):
        tasks.load(task())


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_set_has_a_dozen_different_questions(name: str) -> None:
    questions = tasks.load(task(name))
    assert len(questions) >= 12
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.turns for question in questions}) == len(questions)
    assert {len(question.turns) for question in questions} == {2 if name == "mt_bench" else 1}
    assert tasks.load(task(name)) == questions


def test_mt_bench_has_the_eight_categories() -> None:
    found = {question.category for question in tasks.load(task("mt_bench"))}
    assert len(found) == 8
    assert {"writing", "roleplay", "reasoning", "math", "coding"} <= found


def test_news_articles_are_as_long_as_news() -> None:
    for question in tasks.load(task("cnn_dm")):
        assert question.turns[0].startswith("Summarize: ")
        assert 300 <= len(question.turns[0].split()) <= 700, question.id


def test_humaneval_is_the_164_problems_behind_the_instruction_of_the_paper() -> None:
    questions = tasks.load(task("humaneval"))
    assert [question.id for question in questions] == [f"HumanEval/{number}" for number in range(164)]
    for question in questions:
        assert re.match(r"Complete the code I provided\.\n\n\s*(from|import|def|#|\w+ ?=)", question.turns[0])
        assert "def " in question.turns[0]
        assert question.reference[0].strip()


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_count_is_evenly_spaced_over_the_source(total: int, count: int) -> None:
    source = [Question(str(number), "", ("x",)) for number in range(total)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "read_jsonl", lambda _: source)
        chosen = [int(question.id) for question in tasks.load(task(source="file", path="x", count=count))]
    assert len(chosen) == min(count, total)
    assert chosen[0] == 0
    gaps = {after - before for before, after in zip(chosen, [*chosen[1:], total], strict=True)}
    assert max(gaps) - min(gaps) <= 1


HUB_ROWS = [
    {"instruction": "Add.", "input": "1 {2}", "output": "3", "prompt": ["Add?", "Why?"], "category": "math"},
    {"instruction": "Sing.", "input": "", "output": "la", "prompt": ["Sing?", "Louder?"], "category": "art"},
]


@pytest.fixture(params=["jsonl", "parquet"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A data set folder in hub layout; what ``datasets`` caches stays in the test's own folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    if request.param == "jsonl":
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in HUB_ROWS))
    else:
        import pandas as pd

        pd.DataFrame(HUB_ROWS).to_parquet(folder / "test-00000-of-00001.parquet")
    return Hub(str(folder), "test")


def test_a_row_becomes_turns_by_template_or_by_column(hub: Hub) -> None:
    by_template = replace(hub, template="{instruction}\n{input}", reference="output")
    assert tasks.load(task(source="hub", hub=by_template)) == (
        Question("0", "math", ("Add.\n1 {2}",), ("3",)),
        Question("1", "art", ("Sing.",), ("la",)),
    )
    by_column = replace(hub, turns="prompt")
    found = tasks.load(task(source="hub", hub=by_column, count=1))
    assert found == (Question("0", "math", ("Add?", "Why?")),)


def test_a_column_or_a_split_that_is_not_there_is_one_line(hub: Hub) -> None:
    for wrong in (
        {"template": "{instuction}"},
        {"turns": "instuction"},
        {"turns": "prompt", "reference": "instuction"},
    ):
        with pytest.raises(
            ConfigError, match=r"has no column 'instuction'; it has instruction, input, output"
        ) as error:
            tasks.load(task(source="hub", hub=replace(hub, **wrong)))
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*validation") as error:
        tasks.load(task(source="hub", hub=replace(hub, turns="prompt", split="validation")))
    assert "\n" not in str(error.value)


def test_a_data_set_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"^data set .*nothing \(revision main\) cannot be loaded: ") as error:
        tasks.load(task(source="hub", hub=Hub(str(tmp_path / "nothing"), "test", turns="prompt")))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong", [{"turns": "instruction"}, {"template": "{input}"}, {}], ids=["a string", "an empty turn", "neither given"]
)
def test_rows_that_make_no_question_are_refused_as_in_a_jsonl_file(hub: Hub, wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        tasks.load(task(source="hub", hub=replace(hub, **wrong)))
