"""The recorded draft nodes of a method in a cell: what figures 5 and 6 count."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.block import Nodes
from bench.report.admissible import AdmissibleCell
from methods.common.errors import ConfigError


def draft_nodes(one: AdmissibleCell, label: str) -> Iterator[tuple[str, Nodes]]:
    """The question and the nodes of each turn, in the order recorded.

    Raises:
        ConfigError: if the cell was measured without them.
    """
    for block in one.blocks:
        for turn in block.turns_of(one.method_ids[label]):
            if turn.nodes is None:
                raise ConfigError(f"{one.cell.name} has no draft nodes; measure and draw it with measure.nodes=true")
            yield block.question_id, turn.nodes


def confidences(label: str, nodes: Nodes) -> list[list[float]]:
    """The draft's confidence in each node, by cycle.

    Raises:
        ConfigError: if the method has none.
    """
    if nodes.confidence is None and nodes.parents:
        raise ConfigError(f"{label} drafts without a confidence, which this figure needs; choose another method=")
    return nodes.confidence or []
