"""What the bench tests share: hand-made cells and records, and the command line in this process or in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bench.report.__main__
import bench.run
import methods.train.__main__
from bench.plan.cells import Cell, Question
from bench.plan.schema import Decode, Hub, Measure, Model, Task
from bench.records.block import Block, Run, Turn

ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = {
    "bench.run": bench.run.main,
    "bench.report": bench.report.__main__.main,
    "methods.train": methods.train.__main__.main,
}


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


class Command:
    """Runs an entry point in this process, which spares the seconds that importing torch takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(self, *arguments: str, module: str = "bench.run") -> Result:
        self._monkeypatch.setattr(sys, "argv", [module, *arguments])
        self._monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            ENTRY_POINTS[module]()
        assert isinstance(stopped.value.code, int)
        return Result(stopped.value.code, *self._capfd.readouterr())


def in_subprocess(*arguments: str, cwd: Path, module: str = "bench.run") -> Result:
    """The same command as a user types it."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=120,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def environment() -> dict[str, str]:
    """This process's, with the checkout importable from any folder and one thread, since tests share the machine."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def tiny_settings(folder: Path, results: Path) -> list[str]:
    """Overrides that replace the embedded model by the tiny random one."""
    return [
        "model=local",
        "model.name=tiny",
        f"model.id={folder}",
        "model.device=cpu",
        "profile=embedded",
        f"results={results}",
    ]


def write_questions(path: Path, turns: Sequence[Sequence[str]]) -> Path:
    rows = [{"question_id": f"q{number}", "category": "toy", "turns": list(each)} for number, each in enumerate(turns)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cell(**changes: Any) -> Cell:
    """A hand-made cell of two questions; ``decode={"seed": 1}`` changes a field of a group, ``methods=`` replaces."""
    values: dict[str, dict[str, Any]] = {
        "model": {
            "name": "tiny",
            "kind": "hub",
            "id": "org/tiny",
            "revision": "abc",
            "dtype": "float32",
            "template": "tokenizer",
        },
        "task": {"name": "toy", "source": "file", "hub": Hub("org/set", "test"), "path": "toy.jsonl", "count": 2},
        "decode": {
            "name": "greedy",
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "max_new_tokens": 32,
            "seed": 0,
        },
        "measure": {"name": "quick", "warmup_tokens": 8, "repeats": 1, "audit": True, "history": "vanilla"},
    }
    schemas = {"model": Model, "task": Task, "decode": Decode, "measure": Measure}
    groups = {name: schema(**values[name] | changes.get(name, {})) for name, schema in schemas.items()}
    questions = changes.get("questions", (Question("a", "toy", ("Hello?",)), Question("b", "toy", ("One?", "Two?"))))
    return Cell(**groups, methods=changes.get("methods", {"pld": {"max_ngram": 3}}), questions=questions)


def turn(emitted: Sequence[int], seconds: float = 1.0, **more: Any) -> Turn:
    """One turn as far as derived numbers read it: tokens of each step, the prefill's first."""
    facts = {"output_ids": list(range(sum(emitted))), "end_ns": [int(seconds * 1e9)]}
    return Turn(emitted=list(emitted), **facts | more)


def block(
    question: str, runs: Mapping[str, Sequence[Turn]], repeat: int = 0, ids: Mapping[str, str] = {}, **more: Any
) -> Block:
    """One block; a method's id is its name, unless ``ids`` has another."""
    found = [Run(name, ids.get(name, name), list(turns)) for name, turns in runs.items()]
    return Block(question_id=question, repeat=repeat, runs=found, **more)
