"""A trained head as a folder: the published layout, the tokens by frequency, a manifest that says how it was made."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from methods.draft_vocab import FILE
from methods.train.files import sha256, write_whole

_RANKED = 16384
"""Ids kept of the frequency ranking; a draft vocabulary past this is no lever any more."""


def export(head: Any, frequent: Int[Tensor, "ranked"], manifest: dict[str, Any], folder: Path) -> Path:
    """Write ``folder`` anew, whole or not at all. The manifest gains the size and hash of every file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        head.export(partial)
        save_file({"tokens": frequent[:_RANKED].to(torch.int32)}, partial / FILE)
        for path in (partial, *partial.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)  # made private, but meant to be shared
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(partial.iterdir())
        }
        versions = {name: version(name) for name in ("torch", "transformers")}
        text = json.dumps({**manifest, "versions": versions, "files": files}, indent=1)
        (partial / "manifest.json").write_text(text + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def add(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Add to a manifest what only the exported head could tell; returns all of it."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = {**json.loads(path.read_text(encoding="utf-8")), **facts}
    text = json.dumps(manifest, indent=1) + "\n"
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
    return manifest
