"""The only writer of results. A file is whole or absent; a block is one line, appended and synced, or it never was.

    <results>/runs/<cell>/
      cell.json        the resolved config, written before the first block
      sessions/*.json  provenance and hardware of each process that wrote here
      blocks.jsonl     one line a block: raw facts only
      disturbed.jsonl  the same of the attempts that a throttled or shared GPU spoilt; nothing is computed from them
      traces.jsonl     one line a question and method: its draft trees, where measure.trace asks for them
      events.jsonl     what went wrong
      DONE | FAILED.json

One process writes a cell at a time (``bench.records.lock``). A torn last line, the mark of a kill, is dropped when the
cell is opened for writing; any other damage is an error that names the line, because skipping it would quietly change a
number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.records.block import Block, from_record, to_record
from bench.records.lock import Busy, Lock, Lost
from methods.common.atomic_write import naming, sync, write_atomically
from methods.common.errors import ConfigError

SCHEMA = 1
_WRITTEN = ("sessions", "blocks.jsonl", "disturbed.jsonl", "traces.jsonl", "events.jsonl")


class DamagedRecordError(RuntimeError):
    """A record that cannot be read and must not be guessed."""


class Store:
    """The folder of one cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: Lock | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the cell: create its folder, refuse a second writer, clear away what a killed one left half done.

        Raises:
            Busy: if another living process holds it.
            ConfigError: if the folder cannot be written.
        """
        lock = Lock(self.folder)
        try:
            _refuse_links(self.folder.parent, self.folder, *(self.folder / name for name in _WRITTEN))
            _make(self.folder / "sessions")
            lock.acquire()
        except Busy:
            raise
        except OSError as error:
            raise ConfigError(
                f"cannot write results to {self.folder}: {error.strerror}; choose results=FOLDER"
            ) from None
        self._lock = lock
        try:
            for name in ("blocks.jsonl", "disturbed.jsonl", "traces.jsonl", "events.jsonl"):
                _cut_torn_line(self.folder / name)
            for pattern in (".cell.json.*", ".DONE.*", ".FAILED.json.*", "sessions/.*"):  # of ``write_atomically``
                for partial in self.folder.glob(pattern):
                    partial.unlink(missing_ok=True)
            yield
        finally:
            self._lock = None
            lock.release()

    def write_cell(self, resolved: dict[str, Any]) -> None:
        """Stamp the resolved config, before the first block."""
        path = self.folder / "cell.json"
        if not path.exists():
            write_atomically(path, _pretty(resolved))

    def write_session(self, name: str, facts: dict[str, Any]) -> None:
        write_atomically(self.folder / "sessions" / f"{name}.json", _pretty(facts))

    def append_block(self, block: Block) -> None:
        self._append("blocks.jsonl", {"schema": SCHEMA, **to_record(block)})

    def disturbed(self) -> list[Block]:
        """The attempts that were set aside, in the order they were made.

        Raises:
            DamagedRecordError: as for ``blocks``.
        """
        return _read_blocks(self.folder / "disturbed.jsonl")

    def append_disturbed(self, block: Block) -> None:
        self._append("disturbed.jsonl", {"schema": SCHEMA, **to_record(block)})

    def append_trace(self, trace: dict[str, Any]) -> None:
        self._append("traces.jsonl", trace)

    def append_event(self, event: dict[str, Any]) -> None:
        self._append("events.jsonl", event)

    def _append(self, name: str, record: dict[str, Any]) -> None:
        self._check()
        path = self.folder / name
        size = _size(path)
        try:
            _append(path, record)
        except OSError:  # a line that could not be synced may be gone after the next crash: it must not count now
            with suppress(OSError, Lost):
                self._check()  # who lost the cell while it hung must not cut the next owner's lines
                os.truncate(path, size)
            raise

    def _check(self) -> None:
        if self._lock:
            self._lock.confirm()

    def mark_done(self, facts: dict[str, Any]) -> None:
        self._check()
        size = _size(self.folder / "blocks.jsonl")
        (self.folder / "FAILED.json").unlink(missing_ok=True)  # first: a cell is never both
        write_atomically(self.folder / "DONE", _pretty({**facts, "blocks_bytes": size}))

    def mark_failed(self, facts: dict[str, Any]) -> None:
        write_atomically(self.folder / "FAILED.json", _pretty(facts))

    def done(self) -> dict[str, Any] | None:
        """What ``mark_done`` was told. None also if blocks.jsonl is shorter than when DONE was written."""
        found = _read_json(self.folder / "DONE")
        whole = found is None or _ends_a_line(self.folder / "blocks.jsonl", found.get("blocks_bytes", 0))
        return found if whole else None

    def failed(self) -> dict[str, Any] | None:
        return _read_json(self.folder / "FAILED.json")

    def cell(self) -> dict[str, Any]:
        """The resolved config.

        Raises:
            DamagedRecordError: if it is missing.
        """
        found = _read_json(self.folder / "cell.json")
        if found is None:
            raise DamagedRecordError(f"{self.folder / 'cell.json'} is missing: this folder holds no cell")
        return found

    def sessions(self) -> dict[str, dict[str, Any]]:
        return {path.stem: _read_json(path) or {} for path in sorted((self.folder / "sessions").glob("*.json"))}

    def blocks(self) -> list[Block]:
        """Every whole block, in the order written. A torn last line is not a block yet.

        Raises:
            DamagedRecordError: if a line before the last is not a block of this schema.
        """
        return _read_blocks(self.folder / "blocks.jsonl")

    def traces(self) -> list[dict[str, Any]]:
        """Every whole trace, in the order written.

        Raises:
            DamagedRecordError: if a line before the last is not a trace of this schema.
        """
        return _read_lines(self.folder / "traces.jsonl")


def repeats(trace: dict[str, Any], blocks: Iterable[Block]) -> bool:
    """Whether the traced decode gave the very tokens that were timed: bfloat16 on another machine may not."""
    traced = [[token for step in turn["steps"] for token in step["tokens"]] for turn in trace["turns"]]
    return any(
        run.method_id == trace["method_id"] and [turn.output_ids for turn in run.turns] == traced
        for block in blocks
        if block.where == (trace["question_id"], 0)
        for run in block.runs
    )


def _append(path: Path, record: dict[str, Any]) -> None:
    line = json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
    with naming(path):
        new = not path.exists()
        with path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(path.parent)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    records = []
    with naming(path):
        *lines, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if record["schema"] != SCHEMA:
                raise DamagedRecordError(f"{path}:{number} has schema {record['schema']}, this code reads {SCHEMA}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedRecordError(
                f"{path}:{number} is damaged ({error}); move the folder away and run again"
            ) from None
        records.append(record)
    return records


def _read_blocks(path: Path) -> list[Block]:
    found = []
    for number, line in enumerate(_read_lines(path), 1):
        try:
            found.append(from_record(line))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DamagedRecordError(f"{path}:{number} is no block; move the folder away and run again") from None
    return found


def _refuse_links(*paths: Path) -> None:
    """Below a results folder nothing is a link: one in a folder from elsewhere would be written through."""
    for path in paths:
        if path.is_symlink():
            raise ConfigError(f"{path} is a link, and would be written through; remove it, or choose results=FOLDER")


def own_folder(path: Path) -> Path:
    """Make a folder of a results folder.

    Raises:
        ConfigError: if it is a link to somewhere else.
    """
    _refuse_links(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with naming(path):
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())


def _make(folder: Path) -> None:
    """Make a folder so that it is there after a crash too: a folder's name is kept by its parent."""
    absent = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in absent:
        with suppress(PermissionError):  # a parent that may be written but not read
            sync(one.parent)


def _ends_a_line(path: Path, size: int) -> bool:
    """Whether a file still has so many bytes, the last of which ends a line: one that was torn may be as long."""
    if not size:
        return True
    if _size(path) < size:
        return False
    with naming(path), path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    with naming(path):
        data = path.read_bytes()
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(f"{path} is damaged ({error}); remove it and run again") from None
    return found


def _pretty(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=1, sort_keys=True, allow_nan=False) + "\n"
