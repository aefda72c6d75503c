"""Text that the target only reads: documentation and source code of the packages that are installed beside it.

It costs a fifth of text that the target writes, since a whole passage is read in one forward. It teaches a head the
target's states over text of other authors, such as a long prompt.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from methods.train.overlap import Overlap

_NAMES = ("METADATA", "*.md", "*.rst", "*.py")
_SMALLEST, _LARGEST = 2_000, 200_000  # bytes: shorter files teach little, longer ones are tables


def passages(tokenizer: Any, overlap: Overlap, *, tokens: int, length: int, seed: int) -> Iterator[list[int]]:
    """Passages of ``length`` tokens, one from each file, until ``tokens`` are reached or the files run out."""
    root = Path(sysconfig.get_paths()["purelib"])
    found = [path for name in _NAMES for path in sorted(root.rglob(name)) if path.is_file()]
    rng = random.Random(f"reading {seed}")  # noqa: S311 no secret
    rng.shuffle(found)
    for path in found:
        if tokens <= 0:
            return
        if not _SMALLEST <= path.stat().st_size <= _LARGEST:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        start = rng.randrange(max(1, len(text) - 8 * length))
        text = text[start : start + 8 * length]
        ids = tokenizer.encode(text, add_special_tokens=False)[:length]
        if len(ids) == length and text not in overlap:
            tokens -= length
            yield ids
