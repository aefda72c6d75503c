"""What a folder of weights holds, as one hash: small files whole, large ones by size, head and tail."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".model", ".jinja", ".txt")
_END = 4 << 20
"""A safetensors header lies in the first bytes; a retrained layer changes the last ones: reading 70 GB adds nothing."""


def fingerprint(folder: str) -> str | None:
    """SHA-256 over the names and contents of a folder's model files; None if there is no such folder."""
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
