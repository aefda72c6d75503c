"""A trained head as a folder: the published layout, the tokens by frequency, a manifest that says how it was made."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from methods.common.atomic_write import naming, sync, write_atomically
from methods.common.file_hash import sha256
from methods.heads.draft_vocab import FILE

_RANKED = 16384
"""Ids kept of the frequency ranking; a larger draft vocabulary would save too little."""


def export(head: Any, frequent: Int[Tensor, "ranked"], manifest: dict[str, Any], folder: Path) -> Path:
    """Write ``folder`` anew, whole or not at all. The manifest gains the size and hash of every file.

    Raises:
        OSError: naming the folder; the head that was there before is then untouched.
    """
    partial, old = (folder.with_name(f".{folder.name}.{what}") for what in ("partial", "old"))
    with naming(folder):
        if old.exists() and not folder.exists():  # a kill came between the two renames below
            old.rename(folder)
        for left_by_a_kill in (partial, old):
            shutil.rmtree(left_by_a_kill, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _fill(partial, head, frequent, manifest)
            for path in (*partial.iterdir(), partial):
                sync(path)
            if folder.exists():
                folder.rename(old)  # two renames: a reader finds a whole head or none
            partial.rename(folder)
        finally:
            if old.exists() and not folder.exists():
                old.rename(folder)
            shutil.rmtree(partial, ignore_errors=True)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _fill(folder: Path, head: Any, frequent: Int[Tensor, "ranked"], manifest: dict[str, Any]) -> None:
    head.export(folder)
    save_file({"tokens": frequent[:_RANKED].to(torch.int32)}, folder / FILE)
    for path in folder.iterdir():
        path.chmod(0o644)  # some writers make them private, but a head is meant to be shared
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())}
    versions = {name: version(name) for name in ("torch", "transformers")}
    text = json.dumps({**manifest, "versions": versions, "files": files}, indent=1)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def add(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Add facts to a manifest that only the exported head could give; returns the whole manifest."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = {**json.loads(path.read_text(encoding="utf-8")), **facts}
    text = json.dumps(manifest, indent=1) + "\n"
    write_atomically(path, text)
    return manifest
