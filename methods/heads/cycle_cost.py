"""What a cycle of each built-in method asks for, from its settings alone: a plan is made before torch loads.

An outside package's method has no entry, and then no bound: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.heads.static_trees import paths


@dataclass(frozen=True)
class Work:
    """A cycle: ``rows`` of the target's forward, and ``passes`` of a draft that reads ``elements`` for so many rows."""

    rows: float
    passes: float = 0
    pass_rows: float = 0.0
    elements: float = 0.0
    chained: bool = False
    """One pass a drafted token, and no more: passes follow rows where the length of a draft changes."""

    def at(self, rows: float) -> Work:
        """The same cycle with so many rows, as records have them."""
        return replace(self, rows=rows, passes=max(rows - 1, 0) if self.chained else self.passes)


def work(
    name: str, knobs: Mapping[str, Any], head: int | None, vocab: int, hidden: int, *, whole: bool = False
) -> Work | None:
    """A cycle at these settings, at most; None where the method, its head or a setting is not known.

    Args:
        name: a registered name.
        knobs: its settings, as in conf/method.
        head: parameters of its draft weights, if it has any.
        whole: whether the output matrix is among them.
        vocab: the target's.
        hidden: the target's.
    """
    try:
        return _without_weights(name, knobs) or (
            _drafted(name, knobs, head, 0 if whole else vocab, hidden) if head else None
        )
    except KeyError:
        return None


def _without_weights(name: str, knobs: Mapping[str, Any]) -> Work | None:
    match name:
        case "vanilla":
            return Work(1)
        case "pld":
            return Work(knobs["num_draft"] + 1)
        case "lookahead":
            return Work((knobs["ngram"] - 1) * (knobs["guesses"] + knobs["window"]))
    return None


def _drafted(name: str, knobs: Mapping[str, Any], head: int, vocab: int, hidden: int) -> Work | None:
    output = (knobs.get("draft_vocab") or vocab) * hidden if vocab else 0
    own = head if head >= output else head + output  # a small file has no output matrix: it shares the target's
    if name == "sps":  # with its heuristic schedule, the first cycle
        return Work(knobs["num_draft"] + 1, knobs["num_draft"], 1, own, chained=True)
    if name == "eagle2":
        k, depth = knobs["top_k"], knobs["depth"]
        nodes = min(knobs["total_tokens"], k + (depth - 1) * k**2) if knobs["rerank"] else k * depth
        return Work(nodes + 1, depth, k, head + output)
    if name not in ("medusa", "hydra", "eagle"):
        return None
    tree = paths(knobs["tree"])
    rows, depth, inner = len(tree) + 1, max(map(len, tree)), len({path[:-1] for path in tree})
    match name:
        case "medusa":
            return Work(rows, 1, 1, own)
        case "hydra":
            return Work(rows, depth, inner / depth, head / depth + own - head)
    return Work(rows, depth, inner / depth, head + output)
