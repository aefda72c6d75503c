"""EAGLE (Li et al. 2024, arXiv 2401.15077): feature-level drafting over a static tree of 25 nodes.

At T=0 a node of rank r carries the r-th most likely draft token. At T>0 the children of a node are drawn from the
draft's own q *without replacement*, q warped as the target is, and verified by the rule that is exact for that
(``siblings``).

Deviations from SafeAILab/EAGLE: the reference takes its coins from an unseeded generator and applies no warpers to the
last draw (PR 215), so it is lossless at T=1 only; both are right here. A level draws as many
children per node as its widest node has and uses those the tree lists (the reference draws ten everywhere).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from methods.base import Context, Draft, Networks, Outcome, Prefill, Request
from methods.decode.draws import LANES
from methods.decode.sampling import distribution, draw_siblings
from methods.decode.target import Target
from methods.decode.topk import top
from methods.decode.tree import from_list, inner_levels, parents_of_paths
from methods.heads.eagle_head import EagleHead, check_head
from methods.heads.static_trees import fitted
from methods.loading.model_header import Outline


@dataclass(frozen=True)
class EagleConfig:
    """``tree``: a name of ``methods.heads.static_trees`` or a tree written out; ``draft_vocab``: see
    ``methods.heads.draft_vocab``; ``weights``: the head.
    """

    tree: str = "eagle_25"
    draft_vocab: int = 0
    weights: Any = None


class Eagle:
    """Drafts the static tree level by level."""

    Config = EagleConfig
    rejection = True
    path_only = True

    def __init__(self, config: EagleConfig, target: Target, tokenizer: Any = None) -> None:
        nodes = fitted(config.tree, widest=min(target.vocab, LANES))
        widest = max(path[-1] for path in nodes) + 1
        self._head = EagleHead(config.weights, "eagle", target, draft_vocab=config.draft_vocab, widest=widest)
        self._device = target.head_device
        parents = parents_of_paths(nodes)
        self._tree = from_list(parents, self._device)
        self._levels = inner_levels(parents, self._device)
        self._seen: list[Tensor] = []  # of each level, which draft rows so far its nodes see
        drafted: list[int] = []
        for depth, level in enumerate(self._levels):
            drafted += level.inner if depth else []
            self._seen.append(self._tree.mask[level.inner][:, drafted])
        self.max_rows = len(parents)

    @staticmethod
    def check(config: EagleConfig, target: Outline) -> None:
        check_head(config.weights, "eagle", target)

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._head.begin(request, prefill, self.max_rows)

    def propose(self, context: Context) -> Draft:
        feature = self._head.catch_up()
        tokens = torch.full((self.max_rows,), context.ids[-1], device=self._device)
        qs, q_nodes = [], []
        for depth, level in enumerate(self._levels):
            if depth:
                feature = self._head.extend(tokens[level.nodes], feature[level.above], self._seen[depth])
            logits = self._head.draft.logits(feature)
            if context.sampling.greedy:
                drawn = self._head.draft.tokens(top(logits, level.width))
            else:
                q = distribution(self._head.draft.spread(logits), context.sampling)
                drawn = self._draw(q, context, depth, level.width)
                qs.append(q)
                q_nodes += level.inner
            tokens[level.children] = drawn[level.row, level.rank]
        self._head.end_draft()
        if context.sampling.greedy:
            return Draft(tokens, self._tree)
        return Draft(tokens, self._tree, "siblings", q=torch.cat(qs), q_nodes=tuple(q_nodes))

    def observe(self, outcome: Outcome) -> None:
        self._head.observe(outcome)

    def networks(self) -> Networks:
        return self._head.networks()

    def _draw(self, q: Tensor, context: Context, depth: int, width: int) -> Tensor:
        position = torch.full((q.shape[0],), context.root_position + 1 + depth, device=q.device)
        uniforms = torch.stack([context.draws.uniform("draft", position, lane) for lane in range(width)])
        return draw_siblings(q, uniforms)[0]
