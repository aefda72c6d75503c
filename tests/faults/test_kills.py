"""SIGKILL at any point, then the same command again: the records of an unbroken run, and at most one block repeated.

A first run is only watched, and tells every point at which a process can be struck (``fault_points``). Each trial
then strikes a process at one of them and runs the command once more. The ordinary suite tries a few of every kind;
``make test-faults`` tries all that change the disk, and the steps of the work between them.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import tiny_settings
from tests.support.fault_points import Fault
from tests.support.faults import Event, Server, events, left, toy_cell, trials, whole_lines
from tests.support.training import arguments as training

FULL = "DRAFTBENCH_FULL" in os.environ
pytestmark = pytest.mark.timeout(0 if FULL else 300)


def survives(
    server: Server,
    tmp_path: Path,
    prepare: Callable[[Path], list[str]],
    result: Callable[[Path], Any],
    *,
    fast: int,
    steps: int,
    module: str = "bench.run",
    after: Callable[[Event, list[Event]], None] | None = None,
) -> None:
    """Strike ``prepare``'s command at each point and run it again: ``result`` must be an unbroken run's.

    ``after`` looks at what a kill left, before the command runs again.
    """
    folder, scratch = tmp_path / "struck", tmp_path
    command = prepare(folder)
    assert server(*command, scratch=scratch, module=module, watched=folder).code == 0
    seen, expected = events(scratch), result(folder)
    failures, kinds = [], Counter[str]()
    for event, moment in trials(seen, None if FULL else fast, steps):
        shutil.rmtree(folder)
        prepare(folder)
        struck = server(*command, scratch=scratch, module=module, watched=folder, fault=Fault(event.at, moment))
        name = f"{moment} {event.at} {event.label}"
        if struck.code != -9:
            failures.append(f"{name}: ended with {struck.code}: {struck.err[-300:]}")
            continue
        kinds[event.kind] += 1
        if after:
            after(event, seen)
        again = server(*command, scratch=scratch, module=module)
        if again.code:
            failures.append(f"{name}: the same command then ended with {again.code}: {again.err[-300:]}")
        elif result(folder) != expected:
            failures.append(f"{name}: other results than of an unbroken run")
    print(f"{sum(kinds.values())} kills, {len(failures)} not recovered: {dict(kinds)}")
    assert not failures, "\n".join(failures)
    assert sum(kinds.values()) >= min(fast, len(seen))


def nothing_half_done(results: Path) -> list[str]:
    """Files that only a writer at work may have. A claim to the lock, made and dropped in a moment, holds nothing."""
    return [str(path) for path in results.rglob(".*") if not path.name.startswith((".owner.", ".claim."))]


def test_a_run_that_is_killed_anywhere(server: Server, tmp_path: Path, tiny_model_folder: Path) -> None:
    results = tmp_path / "struck" / "results"

    def prepare(folder: Path) -> list[str]:
        folder.mkdir()
        return ["method=[pld,lookahead]", *toy_cell(tiny_model_folder, folder, results)]

    def at_most_the_block_in_flight(event: Event, seen: list[Event]) -> None:
        """Every block whose sync had ended is there, and no other but the one being written."""
        synced = sum(one.label == "fsync blocks.jsonl" for one in seen[: event.at])
        assert len(whole_lines(results)) - synced in (0, 1)
        assert len(whole_lines(results)) == synced or event.label.endswith("blocks.jsonl")

    def result(folder: Path) -> Any:
        return left(results), nothing_half_done(results)

    survives(server, tmp_path, prepare, result, fast=9, steps=30, after=at_most_the_block_in_flight)


def test_a_run_that_adds_a_method_to_a_finished_cell(server: Server, tmp_path: Path, tiny_model_folder: Path) -> None:
    """Sampled this time; what was measured before must not change by a byte, killed or not."""
    first, results = tmp_path / "first", tmp_path / "struck" / "results"
    first.mkdir()
    toy = ["decode=t1", *toy_cell(tiny_model_folder, first, first / "results")]
    assert server("method=pld", *toy, scratch=tmp_path).code == 0
    before = whole_lines(first / "results")

    def prepare(folder: Path) -> list[str]:
        shutil.copytree(first, folder)
        return ["method=[pld,lookahead]", "decode=t1", *toy_cell(tiny_model_folder, folder, results)]

    def result(folder: Path) -> Any:
        assert whole_lines(results)[: len(before)] == before
        return left(results), nothing_half_done(results)

    survives(server, tmp_path, prepare, result, fast=3, steps=12)


def test_a_report_that_is_killed_leaves_each_file_whole_and_the_next_is_the_same(
    server: Server, tmp_path: Path, tiny_model_folder: Path
) -> None:
    first, results = tmp_path / "first", tmp_path / "struck" / "results"
    table = ["table=table1", "method=pld", "decode=greedy", "task=nq", "task.count=2", "decode.max_new_tokens=4"]
    assert server(*table, *tiny_settings(tiny_model_folder, first / "results"), scratch=tmp_path).code == 0
    redrawn: dict[str, bytes] = {}

    def prepare(folder: Path) -> list[str]:
        shutil.copytree(first, folder)
        for path in (results / "tables").iterdir():
            path.write_text("old")
        return [*table, *tiny_settings(tiny_model_folder, results)]

    def drawn(folder: Path) -> dict[str, bytes]:
        paths = [*(results / "tables").iterdir(), *results.glob("*.html")]
        found = {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}
        redrawn.update(found if not redrawn else {})
        return found

    def whole(event: Event, seen: list[Event]) -> None:
        for name, content in drawn(results).items():
            assert content in (b"old", redrawn[name])

    survives(server, tmp_path, prepare, drawn, fast=3, steps=0, module="bench.report", after=whole)


def test_a_training_that_is_killed_in_its_export(server: Server, tmp_path: Path, tiny_model_folder: Path) -> None:
    """A head was exported before: it is whole or absent at every moment, and the next one is the same."""
    first, module = tmp_path / "first", "methods.train"
    assert server(*training(tiny_model_folder, first, "eagle"), scratch=tmp_path, module=module).code == 0
    old = exported(first)

    def prepare(folder: Path) -> list[str]:
        shutil.copytree(first, folder)
        return training(tiny_model_folder, folder, "eagle")

    def whole_or_absent(event: Event, seen: list[Event]) -> None:
        files = {name for name in exported(tmp_path / "struck") if not name.startswith(".")}
        assert not files or files == old.keys()

    survives(server, tmp_path, prepare, exported, fast=3, steps=0, module=module, after=whole_or_absent)


def exported(work: Path) -> dict[str, bytes]:
    """The head's files, if there is one."""
    return {path.name: path.read_bytes() for path in (work / "weights" / "eagle").glob("*")}
