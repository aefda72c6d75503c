"""Every draft node of every cycle, as raw facts: what figures 5 and 6 need and a speed measurement must not pay for.

A recorder stands between the loop and a drafter. ``measure.nodes=true`` switches it on; such cells have an id of their
own, since recording costs time. For each node below the root: its parent, the draft's confidence, and whether the
target's own choice after the node's parent (argmax, or the draw keyed by that position) is the node's token. That is
defined for nodes on paths which were not taken, too: the tree's forward conditions each row on its own ancestors.
"""

from __future__ import annotations

from typing import Any

import torch

from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request
from methods.decode.sampling import distribution, target_tokens


class NodeRecorder:
    """Notes what became of every node of a drafter. The loop shows it no turn's last cycle: that one is absent."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.max_rows, self.rejection = drafter.max_rows, drafter.rejection
        self.facts: dict[str, list[list[Any]]] = {"parents": [], "hit": []}

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._drafter.begin(request, prefill)

    def propose(self, context: Context) -> Draft:
        self._context, self._root = context, context.root_position  # its ids grow before the outcome is known
        return self._drafter.propose(context)

    def observe(self, outcome: Outcome) -> None:
        self._note(outcome)
        self._drafter.observe(outcome)

    def _note(self, outcome: Outcome) -> None:
        draft, tree, sampling = outcome.draft, outcome.draft.tree, self._context.sampling
        logits, tokens, parents = outcome.logits[: tree.size], draft.tokens[1 : tree.size], tree.parents[1:]
        reached = range(self._root + 1, self._root + tree.height + 2)
        choice = target_tokens(logits, sampling, self._context.draws, reached, tree.depths)
        self.facts["parents"].append(parents.tolist())
        self.facts["hit"].append((tokens == choice[parents]).int().tolist())
        if draft.log_confidence is not None:
            self.facts.setdefault("confidence", []).append(_short(draft.log_confidence.exp()))
        if not sampling.greedy:
            probs = distribution(logits, sampling)[parents]
            self.facts.setdefault("target", []).append(_short(probs.gather(1, tokens[:, None])[:, 0]))


def _short(probs: torch.Tensor) -> list[float]:
    """Probabilities as the shortest decimals that are still the same float32."""
    return [float(str(value)) for value in probs.float().cpu().numpy()]
