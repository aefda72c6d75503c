"""What a cycle of decoding asks for, by the shape of its draft and from settings alone: a plan is made without torch.

The registry in ``methods`` says which of these functions counts for which method. An outside package's method has
none, and then no bound: nothing is guessed. Every function raises ``LookupError`` where a setting or the size of the
draft is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.heads.static_trees import paths

Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class CycleCost:
    """A cycle: ``rows`` of the target's forward, and ``passes`` of a draft that reads ``elements`` for so many rows."""

    rows: float
    passes: float = 0
    pass_rows: float = 0.0
    elements: float = 0.0
    chained: bool = False
    """One pass a drafted token, and no more: passes follow rows where the length of a draft changes."""

    def at(self, rows: float) -> CycleCost:
        """The same cycle with so many rows, as records have them."""
        return replace(self, rows=rows, passes=max(rows - 1, 0) if self.chained else self.passes)


@dataclass(frozen=True)
class DraftSize:
    """How large a draft is, before it loads.

    ``parameters`` are those of its file, None where nothing tells; ``vocab`` and ``hidden`` are the target's; ``whole``
    says that an output matrix is among the parameters.
    """

    parameters: int | None
    vocab: int
    hidden: int
    whole: bool = False

    @property
    def own(self) -> int:
        """Parameters of the file; ``LookupError`` where nothing tells."""
        if self.parameters is None:
            raise LookupError("the size of the draft is not known")
        return self.parameters

    def output(self, knobs: Knobs) -> int:
        """Elements of the target's output matrix that the draft multiplies with, if it has none of its own."""
        return 0 if self.whole else (knobs.get("draft_vocab") or self.vocab) * self.hidden

    def read(self, knobs: Knobs) -> int:
        """Elements read in all: a file smaller than an output matrix has none, and shares the target's."""
        return self.own if self.own >= self.output(knobs) else self.own + self.output(knobs)


Cost = Callable[[Knobs, DraftSize], CycleCost]


def root_only(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """Nothing is drafted."""
    return CycleCost(1)


def found_chain(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A chain that is looked up and costs no forward."""
    return CycleCost(knobs["num_draft"] + 1)


def ngrams_and_window(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """Guessed n-grams, and the window that finds new ones, in the target's own forward."""
    return CycleCost((knobs["ngram"] - 1) * (knobs["guesses"] + knobs["window"]))


def drafted_chain(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A chain, one pass of the draft a token. Where a schedule changes its length, this is the first cycle."""
    return CycleCost(knobs["num_draft"] + 1, knobs["num_draft"], 1, draft.read(knobs), chained=True)


def tree_in_one_pass(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A static tree whose levels are all read off one row."""
    return CycleCost(len(paths(knobs["tree"])) + 1, 1, 1, draft.read(knobs))


def tree_by_heads(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A static tree with a head of its own for each level: a pass reads one of them."""
    rows, depth, inner = _tree(knobs)
    return CycleCost(rows, depth, inner / depth, draft.own / depth + draft.read(knobs) - draft.own)


def tree_by_levels(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A static tree, one pass of the same head for each level."""
    rows, depth, inner = _tree(knobs)
    return CycleCost(rows, depth, inner / depth, draft.own + draft.output(knobs))


def grown_tree(knobs: Knobs, draft: DraftSize) -> CycleCost:
    """A tree grown by ``top_k`` nodes a level, of which ``total_tokens`` are verified."""
    k, depth = knobs["top_k"], knobs["depth"]
    nodes = min(knobs["total_tokens"], k + (depth - 1) * k**2) if knobs["rerank"] else k * depth
    return CycleCost(nodes + 1, depth, k, draft.own + draft.output(knobs))


def _tree(knobs: Knobs) -> tuple[int, int, int]:
    """Rows with the root, levels, and nodes that have children."""
    tree = paths(knobs["tree"])
    return len(tree) + 1, max(map(len, tree)), len({path[:-1] for path in tree})
