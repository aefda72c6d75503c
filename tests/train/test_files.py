"""What training writes is whole or absent, whoever writes it, and a full disk is an ``OSError`` that names the file."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from methods.common.atomic_write import write_atomically
from methods.train.export import export
from tests.support.faults import Server
from tests.support.training import arguments

LARGE = torch.zeros(100_000)
WRITERS: dict[str, Callable[[Path], object]] = {
    "torch": partial(torch.save, LARGE),
    "safetensors": lambda path: save_file({"x": LARGE}, path),
    "numpy": LARGE.numpy().tofile,
    "text": lambda path: path.write_text("x" * 100_000),
}


@pytest.fixture
def no_large_files() -> Iterator[None]:
    """The kernel's limit on a file's size: as good as a full disk, and needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_that_fails_names_its_file_and_leaves_the_old_one(
    writer: str, tmp_path: Path, no_large_files: None
) -> None:
    path = tmp_path / "head.bin"
    path.write_text("old")
    with pytest.raises(OSError, match=r".") as failed:
        write_atomically(path, WRITERS[writer])
    assert failed.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class Head:
    """Exports one file, of any size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def export(self, folder: Path) -> None:
        save_file({"x": torch.zeros(self._size)}, folder / "model.safetensors")


def test_an_export_that_fails_leaves_the_head_that_was_there(tmp_path: Path, no_large_files: None) -> None:
    folder, tokens = tmp_path / "eagle", torch.arange(9)
    export(Head(10), tokens, {"made": 1}, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"model.safetensors", "draft_vocab.safetensors", "manifest.json"}
    folder.rename(tmp_path / ".eagle.old")  # a kill between the two renames of a later export
    with pytest.raises(OSError, match=r".") as failed:
        export(Head(10_000), tokens, {"made": 2}, folder)
    assert failed.value.filename == str(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]
    (tmp_path / ".eagle.partial").mkdir()  # as a kill leaves it
    export(Head(11), tokens, {"made": 3}, folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_ends_training_in_one_line(server: Server, tmp_path: Path, tiny_model_folder: Path) -> None:
    work = tmp_path / "work"
    command: list[Any] = arguments(tiny_model_folder, work, "eagle")
    result = server(*command, scratch=tmp_path, module="methods.train", max_bytes=3000)
    assert result.code == 1
    assert "Traceback" not in result.err
    last = result.err.splitlines()[-1]
    assert last.startswith(f"error: {work / 'corpus'}")
    assert last.endswith("what was written before is intact, and the same command goes on")
    assert not list(work.rglob(".*"))
