"""Recorders stand between the loop and a drafter and write down its drafts: raw facts that no timed run may pay for.

``NodeRecorder`` keeps what became of every draft node, which figures 5 and 6 need. ``measure.nodes=true`` switches it
on; such cells have an id of their own, since recording costs time. ``TreeRecorder`` copies each tree to the host, for
the traces, which are decoded apart from the clock.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bench.records.block import Nodes
from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request
from methods.decode.sampling import distribution, target_tokens


class Recorder:
    """A drafter that does as another one does. Those below also look at what passes."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.max_rows, self.rejection = drafter.max_rows, drafter.rejection

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._drafter.begin(request, prefill)

    def propose(self, context: Context) -> Draft:
        return self._drafter.propose(context)

    def observe(self, outcome: Outcome) -> None:
        self._drafter.observe(outcome)


class NodeRecorder(Recorder):
    """Notes each node below the root: its parent, the draft's confidence, and whether it is the target's choice.

    The choice is the argmax after the node's parent, or the draw keyed by that position. It is defined for nodes on
    paths which were not taken, too: the tree's forward conditions each row on its own ancestors. The loop shows a
    drafter no turn's last cycle, so that one is absent.
    """

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._parents: list[list[int]] = []
        self._hit: list[list[int]] = []
        self._confidence: list[list[float]] = []
        self._target: list[list[float]] = []

    @property
    def nodes(self) -> Nodes:
        """Of the turn so far."""
        return Nodes(self._parents, self._hit, self._confidence or None, self._target or None)

    def propose(self, context: Context) -> Draft:
        self._context, self._root = context, context.root_position  # its ids grow before the outcome is known
        return super().propose(context)

    def observe(self, outcome: Outcome) -> None:
        draft, tree, sampling = outcome.draft, outcome.draft.tree, self._context.sampling
        logits, tokens, parents = outcome.logits[: tree.size], draft.tokens[1 : tree.size], tree.parents[1:]
        reached = range(self._root + 1, self._root + tree.height + 2)
        choice = target_tokens(logits, sampling, self._context.draws, reached, tree.depths)
        self._parents.append(parents.tolist())
        self._hit.append((tokens == choice[parents]).int().tolist())
        if draft.log_confidence is not None:
            self._confidence.append(_short(draft.log_confidence.exp()))
        if not sampling.greedy:
            probs = distribution(logits, sampling)[parents]
            self._target.append(_short(probs.gather(1, tokens[:, None])[:, 0]))
        super().observe(outcome)


class TreeRecorder(Recorder):
    """Keeps a copy of each draft on the host: ``draft`` (its tokens, root first), ``parents`` and ``scores``."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.drafts: list[dict[str, Any]] = []

    def propose(self, context: Context) -> Draft:
        draft = super().propose(context)
        scores = _cumulative(draft)
        self.drafts.append(
            {
                "draft": draft.tokens[: draft.tree.size].tolist(),
                "parents": draft.tree.parents.tolist(),
                # JSON has no -inf, the logarithm of a probability that underflowed.
                "scores": scores and [score if math.isfinite(score) else None for score in scores],
            }
        )
        return draft


def _short(probs: torch.Tensor) -> list[float]:
    """Probabilities as the shortest decimals that are still the same float32."""
    return [float(str(value)) for value in probs.float().cpu().numpy()]


def _cumulative(draft: Draft) -> list[float] | None:
    """Each drafted node's log-probability given the root: the sum of the confidences on its path."""
    if draft.log_confidence is None:
        return None
    scores = [0.0]
    for parent, confidence in zip(draft.tree.parents[1:].tolist(), draft.log_confidence.tolist(), strict=True):
        scores.append(scores[parent] + confidence)
    return scores[1:]
