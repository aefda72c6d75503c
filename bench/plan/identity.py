"""What tells two runs apart: hashes of settings and of folders of weights, equal on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".model", ".jinja", ".txt")
_END = 4 << 20
"""A safetensors header lies in the first bytes; a retrained layer changes the last ones: reading 70 GB adds nothing."""


def digest(value: Any) -> str:
    """The first 12 hex digits of the SHA-256 of a value's canonical JSON: an identity, equal on every machine."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:12]


def canonical(value: Any) -> str:
    """Sorted, compact JSON of dataclasses, mappings, sequences and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def method_id(label: str, knobs: Mapping[str, Any]) -> str:
    """A method's identity: its registered name and every setting. What a variant is called is not part of it."""
    return digest({"method": registered(label), "knobs": dict(knobs)})


def registered(label: str) -> str:
    """The method behind a row: a variant is labelled with the method's name and, after a space, what is different."""
    return label.partition(" ")[0]


def fingerprint(folder: str) -> str | None:
    """SHA-256 over the names and contents of a folder's model files; None if there is no such folder.

    Small files are read whole, large ones by size, head and tail.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        return None
    total = hashlib.sha256()
    for path in sorted(path for path in root.iterdir() if path.suffix in _SUFFIXES and path.is_file()):
        size = path.stat().st_size
        total.update(f"{path.name}\x1f{size}\x1f".encode())
        with path.open("rb") as file:
            total.update(file.read(_END))
            if size > _END:
                file.seek(max(size - _END, _END))
                total.update(file.read())
    return total.hexdigest()
