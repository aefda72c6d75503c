"""What the tests of faults share: a server that runs commands in forks, and what must be equal after a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.records.block import Block
from bench.records.store import Store
from tests.support.commands import Result, environment, tiny_settings, write_questions
from tests.support.fault_points import Fault

TURNS = [["Hello hello hello?"], ["One, two, one, two?", "And again, again?"], ["Why? Why?"]]
MEASURED: dict[str, Any] = {"end_ns": [], "phases_ns": {}, "peak_bytes": 0}
"""What no two runs share; all else of a turn is the same in a run that was struck and in one that was not."""


class Server:
    """The forking process. Use it as a context manager; one command at a time, or several ``together``."""

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fault_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, *arguments: str, **more: Any) -> Result:
        return self.together([arguments], **more)[0]

    def together(
        self,
        commands: Sequence[Sequence[str]],
        *,
        scratch: Path,
        module: str = "bench.run",
        watched: Path | None = None,
        fault: Fault | None = None,
        max_bytes: int | None = None,
    ) -> list[Result]:
        """Run the commands at once. ``scratch`` holds their streams, and ``events`` of what lies below ``watched``.

        No file may grow past ``max_bytes``.
        """
        runs = [
            {
                "module": module,
                "arguments": list(arguments),
                "out": str(scratch / f"out{number}"),
                "err": str(scratch / f"err{number}"),
                "log": str(scratch / "events") if watched else None,
                "folder": str(watched),
                "fault": asdict(fault) if fault else None,
                "bytes": max_bytes,
            }
            for number, arguments in enumerate(commands)
        ]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(runs) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [
            Result(code, Path(run["out"]).read_text(), Path(run["err"]).read_text())
            for code, run in zip(codes, runs, strict=True)
        ]


def toy_cell(model: Path, folder: Path, results: Path) -> list[str]:
    """One cell: three questions, one of them in two turns, of which the first is traced."""
    return [
        *tiny_settings(model, results),
        "measure=quick",
        "measure.trace=1",
        "task.name=toy",
        f"task.path={write_questions(folder / 'toy.jsonl', TURNS)}",
        "task.count=null",
        "decode.max_new_tokens=4",
        "measure.warmup_tokens=2",
    ]


@dataclass(frozen=True)
class Left:
    """What a cell's folder holds, without what differs between any two runs."""

    blocks: list[Any]
    traces: list[Any]
    finished: Any


def left(results: Path) -> Left:
    """Of the only cell there."""
    (folder,) = (results / "runs").iterdir()
    store = Store(folder)
    done = store.done()
    return Left(
        [_without(block) for block in store.blocks()],
        [{key: value for key, value in trace.items() if key != "session"} for trace in store.traces()],
        done and {key: done[key] for key in ("method_ids", "questions")},
    )


def _without(block: Block) -> Block:
    runs = [replace(run, turns=[replace(turn, **MEASURED) for turn in run.turns]) for run in block.runs]
    return replace(block, session=None, runs=runs)


@dataclass(frozen=True)
class Event:
    """One line of the log of a run that nothing struck."""

    at: int
    label: str

    @property
    def kind(self) -> str:
        return self.label.split()[0]


def events(scratch: Path) -> list[Event]:
    return [Event(at, label) for at, label in enumerate((scratch / "events").read_text().splitlines())]


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """So many of the items, spread over all of them; all if there are no more."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def trials(seen: Sequence[Event], count: int | None, steps: int) -> list[tuple[Event, str]]:
    """Where to strike: before and after every change of the disk and half-way through every write, and at so many of
    the steps between them. With ``count``, so many in all, spread over kinds and time."""
    disk = [event for event in seen if "step" not in event.label and event.kind not in ("audit", "load")]
    work = [event for event in seen if event not in disk]
    moments = [
        (event, moment) for event in disk for moment in ("before", *(["half"] * (event.kind == "write")), "after")
    ]
    between = [(event, "before") for event in _of_each_kind(work, steps)]
    if count is None:
        return moments + between
    share = min(count // 3, len(between))
    return evenly(moments, count - share) + evenly(between, share)


def _of_each_kind(found: Sequence[Event], count: int) -> list[Event]:
    kinds = list(dict.fromkeys(event.label for event in found))
    return [one for kind in kinds for one in evenly([e for e in found if e.label == kind], -(-count // len(kinds)))]


def whole_lines(results: Path) -> list[bytes]:
    """The blocks on the disk, by the byte."""
    found = [path.read_bytes() for path in results.glob("runs/*/blocks.jsonl")]
    return [line for data in found for line in data.split(b"\n")[:-1]]
