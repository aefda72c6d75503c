"""Records: a file is whole or absent, a block is one whole line, and damage is named, never skipped."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.plan.cells import missing
from bench.records import store as records
from bench.records.block import Block, to_record
from bench.records.store import SCHEMA, DamagedRecordError, Store, own_folder, repeats
from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError
from tests.support.commands import block, cell, environment, turn

FIRST, SECOND = block("a", {"vanilla": [turn([1, 1])]}), block("b", {"vanilla": [turn([1, 1])]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for one in (FIRST, SECOND):
        store.append_block(one)
    return store


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def half_written(path: Path, mode: str = "r", **more: Any) -> Any:
    """A file whose write stores half of the bytes, then meets a full disk."""
    file = open(path, mode, buffering=0, **more)  # noqa: PTH123, SIM115 Path.open is what is replaced

    class Half:
        def __enter__(self) -> Half:
            return self

        def __exit__(self, *_: object) -> None:
            file.close()

        def write(self, data: bytes) -> int:
            file.write(data[: len(data) // 2])
            full_disk()
            return 0

    return Half()


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "fsync": (os, "fsync", full_disk),
    "replace": (Path, "replace", full_disk),
    "write": (Path, "open", half_written),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cell.json"
    write_atomically(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(*FAULTS[fault])
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new and longer")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_is_synced_before_it_takes_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    real_sync, real_replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        folder = os.path.isdir(f"/proc/self/fd/{handle}")  # noqa: PTH112
        happened.append("folder" if folder else f"file of {os.fstat(handle).st_size}")
        real_sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (happened.append("name"), real_replace(self, to))[1])
    write_atomically(tmp_path / "DONE", "all of it")
    assert happened == ["file of 9", "name", "folder"]


def test_a_block_is_synced_whole_and_a_new_file_s_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int | None] = []

    def fsync(handle: int) -> None:
        folder = os.path.isdir(f"/proc/self/fd/{handle}")  # noqa: PTH112
        synced.append(None if folder else os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    store, sizes = Store(tmp_path), []
    for one in (FIRST, SECOND):
        store.append_block(one)
        sizes.append((tmp_path / "blocks.jsonl").stat().st_size)
    assert synced == [sizes[0], None, sizes[1]]


def test_a_block_whose_append_failed_half_way_is_gone_on_the_next_opening(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", half_written)
        with pytest.raises(OSError, match="No space left"):
            store.append_block(FIRST)
    assert store.blocks() == [FIRST, SECOND]
    with store.writing():
        store.append_block(FIRST)
    assert store.blocks() == [FIRST, SECOND, FIRST]


@pytest.mark.parametrize(
    "tail", [b"{", b'{"schema":1', b"\0" * 300, b"\xff\xfe", json.dumps(to_record(FIRST)).encode()]
)
def test_a_torn_last_line_is_not_a_block_and_is_cut_when_opened_for_writing(store: Store, tail: bytes) -> None:
    path = store.folder / "blocks.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert store.blocks() == [FIRST, SECOND]
    assert path.read_bytes() == whole + tail, "reading changes nothing"
    with store.writing():
        assert path.read_bytes() == whole
        store.append_block(FIRST)
    assert store.blocks() == [FIRST, SECOND, FIRST]


def test_a_torn_event_is_cut_too(store: Store) -> None:
    store.append_event({"error": "x"})
    path = store.folder / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"err')
    with store.writing():
        store.append_event({"error": "y"})
    assert [json.loads(line)["error"] for line in path.read_text().splitlines()] == ["x", "y"]


@pytest.mark.parametrize(
    "line",
    [b"{", b"", b"\0" * 40, b"\xff\xfe{}", b"5", b"[]", b"null", b"{}", b'{"schema":99}', b'{"schema":1}{"schema":1}'],
)
def test_damage_before_the_last_line_is_an_error_with_path_and_line(store: Store, line: bytes) -> None:
    path = store.folder / "blocks.jsonl"
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second, b""]))
    expected = "has schema 99, this code reads 1" if b"99" in line else r"is damaged \(.*\); move the folder away"
    with pytest.raises(DamagedRecordError, match=f"^{re.escape(str(path))}:2 {expected}"):
        missing(cell(), store)


def test_other_damaged_files_are_named_and_a_missing_cell_is_said(store: Store) -> None:
    with pytest.raises(DamagedRecordError, match=r"cell\.json is missing: this folder holds no cell"):
        store.cell()
    for name in ("DONE", "FAILED.json", "cell.json"):
        (store.folder / name).write_bytes(b'{"a"')
    for read, name in ((store.done, "DONE"), (store.failed, "FAILED.json"), (store.cell, "cell.json")):
        with pytest.raises(DamagedRecordError, match=f"{name} is damaged .*; remove it and run again"):
            read()


def test_a_second_writer_is_refused_in_one_line_and_admitted_afterwards(tmp_path: Path) -> None:
    with Store(tmp_path).writing():
        with pytest.raises(ConfigError) as refused, Store(tmp_path).writing():
            pass
        owner = f"pid {os.getpid()} on {os.uname().nodename}"
        assert str(refused.value) == (
            f"{tmp_path} is being written by another process ({owner}); wait for it or stop it"
        )
        program = f"from bench.records.store import *\nwith Store(Path({str(tmp_path)!r})).writing(): pass"
        other = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
        )
        assert other.returncode == 1
        assert str(refused.value) in other.stderr
    with Store(tmp_path).writing():
        pass


def test_the_lock_is_given_back_when_the_work_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Store(tmp_path).writing():
        raise RuntimeError
    with Store(tmp_path).writing():
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^cannot write results to .*file/cell: .*; choose results=FOLDER$"):
        Store(tmp_path / "file" / "cell").writing().__enter__()

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # a mode would not stop a test that runs as root
    with pytest.raises(ConfigError, match=r"Permission denied; choose results=FOLDER$"):
        Store(tmp_path / "cell").writing().__enter__()


def test_done_speaks_for_the_blocks_it_was_written_after_and_for_no_fewer(store: Store, tmp_path: Path) -> None:
    store.mark_done({"method_ids": ["m"]})
    path = store.folder / "blocks.jsonl"
    whole = path.read_bytes()
    for kept in (whole, whole + b'{"torn', whole + whole):
        path.write_bytes(kept)
        assert (store.done() or {})["method_ids"] == ["m"]
    for lost in (whole[:-1], whole[:-1] + b"\0", whole[: whole.index(b"\n") + 1], b""):
        path.write_bytes(lost)
        assert store.done() is None
    path.unlink()
    assert store.done() is None
    empty = Store(own_folder(tmp_path / "of a cell" / "without blocks"))
    empty.mark_done({})
    assert empty.done() == {"blocks_bytes": 0}


def test_a_new_folder_is_synced_into_its_parent_and_an_old_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(records, "sync", synced.append)
    cell = tmp_path / "runs" / "cell"
    for expected in ([cell, cell.parent, tmp_path], []):
        with Store(cell).writing():
            assert synced == expected
        synced.clear()


def test_a_long_run_is_not_stopped_by_files_it_left_open(store: Store) -> None:
    def still_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = still_open()
    for _ in range(8):
        store.append_block(FIRST)
        store.mark_done({})
        store.done()
    assert still_open() == before


def test_a_trace_repeats_the_first_block_of_its_question_and_method() -> None:
    made = block("a", {"vanilla": [turn([1]), turn([1, 2])], "m": [turn([2]), turn([1, 1])]})
    texts = {run.method_id: [each.output_ids for each in run.turns] for run in made.runs}

    def trace(question: str, method: str, outputs: list[list[int]]) -> dict[str, Any]:
        # Two steps a turn, the second with all but the first token.
        turns = [{"steps": [{"tokens": ids[:1]}, {"tokens": ids[1:]}]} for ids in outputs]
        return {"question_id": question, "method_id": method, "turns": turns}

    assert repeats(trace("a", "m", texts["m"]), [made])
    assert not repeats(trace("b", "m", texts["m"]), [made])
    assert not repeats(trace("a", "vanilla", texts["m"]), [made])
    assert not repeats(trace("a", "m", texts["m"][:1]), [made])
    assert not repeats(trace("a", "m", texts["m"]), [replace(made, repeat=1)])


def test_a_number_that_is_not_one_is_never_written(store: Store) -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            store.append_block(block("a", {"vanilla": [turn([1, 1], gaps=[(0, bad)])]}))
    assert store.blocks() == [FIRST, SECOND]


def test_the_resolved_config_is_stamped_once_and_sessions_side_by_side(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writing():
        store.write_cell({"schema": SCHEMA})
        store.write_cell({"schema": SCHEMA, "later": True})
        for name in ("s1", "s2"):
            store.write_session(name, {"hardware": {"cpu": name}})
    assert store.cell() == {"schema": SCHEMA}
    store.mark_failed({"why": "x", "at": 1})
    assert (store.folder / "FAILED.json").read_text() == '{\n "at": 1,\n "why": "x"\n}\n', (
        "one order: they can be compared"
    )
    assert store.sessions() == {name: {"hardware": {"cpu": name}} for name in ("s1", "s2")}


TURNS = st.builds(
    lambda emitted, ends, gaps, finish: turn(emitted, end_ns=ends, gaps=gaps, finish=finish),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.lists(st.integers(0, 2**63), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 4096), st.floats(allow_nan=False, allow_infinity=False)), max_size=4),
    st.sampled_from(["eos", "length", "context"]),
)  # fmt: skip
BLOCKS = st.builds(
    lambda question, category, repeat, turns: block(question, {"vanilla": turns}, repeat, category=category),
    st.text(st.characters(codec="utf-8")),
    st.text(st.characters(codec="utf-8")),
    st.integers(0, 9),
    st.lists(TURNS, min_size=1, max_size=3),
)


@settings(max_examples=40)
@given(st.lists(BLOCKS, max_size=4), st.binary(max_size=30).map(lambda tail: tail.replace(b"\n", b"")))
def test_blocks_come_back_as_they_were_written_whatever_follows_them(blocks: list[Block], tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        with store.writing():
            for one in blocks:
                store.append_block(one)
        with (store.folder / "blocks.jsonl").open("ab") as file:
            file.write(tail)
        assert store.blocks() == blocks
