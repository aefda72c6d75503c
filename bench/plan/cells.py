"""What a run consists of: cells, their identity, and which blocks are still missing.

A cell is (model, task, decode, measure) and its questions; its id is a hash of all that could change a number and of
nothing that could not. A method's id is the hash of its own settings, so a method added later makes new blocks with
vanilla runs of its own and leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.plan.identity import digest, method_id
from bench.plan.schema import Decode, Measure, Model, Setup, Task
from bench.records.block import Block
from bench.records.store import SCHEMA, Store

VANILLA = "vanilla"
DRAWS = 2
"""Version of ``methods.decode.sampling.Draws`` and of what is drawn with it: at T>0 another one gives another text."""


@dataclass(frozen=True)
class Question:
    """One question: all its turns, and where it came from."""

    id: str
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        return digest({"id": self.id, "turns": list(self.turns)})


@dataclass(frozen=True)
class Cell:
    """The unit of a table: one model, one task, one way of decoding, measured one way, for some methods."""

    model: Model
    task: Task
    decode: Decode
    measure: Measure
    methods: dict[str, dict[str, Any]]
    questions: tuple[Question, ...]
    without_weights: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """What the cell id hashes. Where the questions lay is left out: their text is in. So are the draft heads and
        the settings of methods, since each belongs to its method's id, and the traces, which are recorded apart from
        the clock. A switch that is off is left out, so that adding one renames no old cell. ``vars``, since ``asdict``
        copies deeply, and a plan of ten thousand cells would wait for that."""
        model = {key: value for key, value in vars(self.model).items() if key not in ("device", "weights", "settings")}
        measure = {key: value for key, value in vars(self.measure).items() if key not in ("questions", "trace")}
        if self.model.runtime == "hf":
            model.pop("runtime")
        if not self.measure.nodes:
            measure.pop("nodes")
        draws = {"draws": DRAWS} if self.decode.temperature > 0 else {}
        return {
            "schema": SCHEMA,
            "model": model,
            "task": self.task.name,
            "questions": [question.sha256 for question in self.questions],
            "decode": vars(self.decode) | draws,
            "measure": measure,
        }

    @cached_property
    def id(self) -> str:
        return digest(self.identity)

    @cached_property
    def name(self) -> str:
        return f"{self.model.name}-{self.task.name}-{self.decode.name}-{self.id}"

    @cached_property
    def method_ids(self) -> dict[str, str]:
        return {name: method_id(name, knobs) for name, knobs in self.methods.items()}

    @property
    def idle(self) -> bool:
        """Nothing that was asked for can run: vanilla alone would measure nothing."""
        return bool(self.without_weights) and not self.methods

    def folder(self, results: Path) -> Path:
        return results / "runs" / self.name


@dataclass(frozen=True)
class MissingBlock:
    """A block that is missing: one question, one repeat, and the methods it still lacks (vanilla goes along)."""

    index: int
    question: Question
    repeat: int
    methods: tuple[str, ...]


def cell_of(setup: Setup, questions: tuple[Question, ...]) -> Cell:
    """Join a configuration and its questions. A method whose ``weights`` are null can't run, and is kept by name."""
    lacking = tuple(name for name, knobs in setup.methods.items() if "weights" in knobs and knobs["weights"] is None)
    runnable = {name: knobs for name, knobs in setup.methods.items() if name not in lacking}
    return Cell(setup.model, setup.task, setup.decode, setup.measure, runnable, questions, lacking)


def missing(cell: Cell, store: Store) -> list[MissingBlock]:
    """The blocks a cell still lacks, in order. A DONE mark that covers the methods answers without reading more."""
    return [] if marked(cell, store) else lacking(cell, store.blocks())


def marked(cell: Cell, store: Store) -> bool:
    """Whether a DONE mark covers the cell's methods. A run that was killed after its last block left none."""
    done = store.done()
    return done is not None and set(cell.method_ids.values()) <= set(done["method_ids"])


def lacking(cell: Cell, blocks: Iterable[Block]) -> list[MissingBlock]:
    """The blocks of a cell that are not among these, in order."""
    have: dict[tuple[str, int], set[str]] = {}
    for block in blocks:
        seen = have.setdefault(block.where, set())
        seen.update(run.method_id for run in block.runs if run.method != VANILLA)
        seen.add(VANILLA)
    work = []
    for repeat in range(cell.measure.repeats):
        for index, question in enumerate(cell.questions):
            seen = have.get((question.id, repeat), set())
            methods = tuple(name for name, ident in cell.method_ids.items() if ident not in seen)
            if methods or VANILLA not in seen:
                work.append(MissingBlock(index, question, repeat, methods))
    return work


def untraced(cell: Cell, store: Store) -> list[tuple[Question, str]]:
    """Of the first ``measure.trace`` questions, those that were measured and have no trace, with the method's name."""
    if not cell.measure.trace:
        return []
    measured = {(block.question_id, ident) for block in store.blocks() for ident in block.method_ids}
    wanted = measured - {(trace["question_id"], trace["method_id"]) for trace in store.traces()}
    first = cell.questions[: cell.measure.trace]
    return [(one, name) for one in first for name, ident in cell.method_ids.items() if (one.id, ident) in wanted]
