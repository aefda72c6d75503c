"""Eight processes race for one table: each cell is written once, by one of them, and no line is torn or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records.store import DamagedRecordError, Store
from tests.support.commands import environment

FULL = "DRAFTBENCH_FULL" in os.environ
WRITERS = 8
CELLS, RECORDS = (40, 256) if FULL else (6, 16)


@pytest.mark.timeout(0 if FULL else 300)
def test_of_eight_writers_each_cell_has_one(tmp_path: Path) -> None:
    worker = [sys.executable, "-m", "tests.support.race_worker", str(tmp_path), str(CELLS), str(RECORDS)]
    writers = [
        subprocess.Popen([*worker, str(seed)], stdout=subprocess.PIPE, text=True, env=environment())
        for seed in range(WRITERS)
    ]
    looked = 0
    while any(writer.poll() is None for writer in writers):  # a reader beside them sees whole lines only
        for folder in tmp_path.glob("cell*"):
            try:
                found = Store(folder).blocks()
            except DamagedRecordError as error:
                pytest.fail(f"a reader met half a line: {error}")
            assert [block.question_id for block in found] == list(map(str, range(len(found))))
            looked += 1
        try:
            writers[0].wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    wrote = [writer.communicate()[0].split() for writer in writers]
    assert {writer.returncode for writer in writers} == {0}
    assert sorted(int(cell) for cells in wrote for cell in cells) == list(range(CELLS))
    lines = 0
    for number in range(CELLS):
        store = Store(tmp_path / f"cell{number}")
        blocks = store.blocks()
        assert [block.question_id for block in blocks] == list(map(str, range(RECORDS)))
        assert len({block.session for block in blocks}) == 1
        assert (store.folder / "blocks.jsonl").read_bytes().endswith(b"}\n")
        lines += len(blocks)
    print(f"{WRITERS} writers, {CELLS} cells, {lines} records, 0 torn, {sum(map(bool, wrote))} writers had work")
