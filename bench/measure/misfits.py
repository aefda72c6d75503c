"""What is refused before any weight loads: wrong settings, weights without a commit, heads that do not fit the target.

Targets and heads are held against each other by the headers of their files. The last cell's wrong head would otherwise
be found after the hours of all the cells before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import methods
from bench.plan import hub_lock
from bench.plan.cells import Cell
from bench.plan.identity import registered
from bench.plan.schema import Model
from methods.common.errors import prefixed
from methods.loading.model import Source, outline
from methods.loading.model_header import Outline


def refuse_misfits(cells: Sequence[Cell], results: Path) -> None:
    """Check every cell.

    Raises:
        ConfigError: naming the setting, as the user typed it.
    """
    for cell in cells:
        for label, knobs in cell.methods.items():
            with prefixed(f"methods.{registered(label)}."):
                methods.configure(registered(label), knobs)
        hub_lock.refuse_unpinned(cell.model, cell.methods, results)
    outlines: dict[Source, Outline] = {}
    checked: set[tuple[Source, str]] = set()
    for cell in cells:
        source = source_of_model(cell.model)
        if source not in outlines:
            with prefixed("model."):
                outlines[source] = outline(source)
        for label, ident in cell.method_ids.items():
            if (source, ident) not in checked:
                with prefixed(f"methods.{registered(label)}."):
                    methods.check(registered(label), cell.methods[label], outlines[source])
                checked.add((source, ident))


def source_of_model(model: Model) -> Source:
    """Where a target's files come from."""
    return Source(model.kind, model.id, model.revision, model.file, model.sha256)
