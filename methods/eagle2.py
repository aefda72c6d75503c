"""EAGLE-2 (Li et al. 2024, arXiv 2406.16858): the same head, a tree grown where the draft is confident.

*Expansion*: level by level, the ``top_k`` nodes of highest value are fed to the head, each yields its ``top_k``
likeliest tokens. The value of a node is the product of the confidences on its path (kept as a sum of float32
log-probabilities). *Reranking*: of all nodes met, the ``total_tokens`` of highest value are verified. A child's value
never exceeds its parent's and ties go to the node met first, so the chosen nodes always form a tree. The draft is a
deterministic set: at every temperature it is verified by sample-and-match.

Settings are in the paper's meaning (appendix A): ``total_tokens`` draft tokens, ``depth`` levels, ``top_k`` nodes per
level. SafeAILab/EAGLE counts otherwise: its ``--total-token 60`` verifies 59 draft tokens and the root, its ``--depth
5`` drafts six levels. Its tree can lose a parent on a tie (fp16 scores, no tie rule); here it cannot.

Ablations (the paper's table 3; no code was published): ``expand=confidence`` picks the nodes to expand by their own
confidence; ``rerank=false`` verifies the expanded nodes themselves, ``top_k`` a level; ``rerank_by=confidence`` is the
other reading of "w/o value", in which reranking uses the confidence too and missing ancestors are taken along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.base import Context, Draft, Networks, Outcome, Prefill, Request
from methods.common.errors import ArgumentError
from methods.common.limits import MOST_ROWS
from methods.decode.sampling import likeliest
from methods.decode.target import Target
from methods.decode.topk import top
from methods.decode.tree import Tree
from methods.heads.eagle_head import EagleHead, check_head
from methods.loading.model_header import Outline


@dataclass(frozen=True)
class Eagle2Config:
    """See the module's first lines; ``weights`` is the head, the same as EAGLE's."""

    total_tokens: int = 60
    depth: int = 6
    top_k: int = 10
    expand: str = "value"
    rerank: bool = True
    rerank_by: str = "value"
    draft_vocab: int = 0
    weights: Any = None

    def __post_init__(self) -> None:
        if min(self.total_tokens, self.depth, self.top_k) < 1:
            raise ArgumentError("total_tokens, depth and top_k must be 1 or more")
        if self.nodes > MOST_ROWS or self.top_k * self.depth > MOST_ROWS:
            raise ArgumentError(
                f"total_tokens={self.total_tokens}, depth={self.depth} and top_k={self.top_k} draft "
                f"more than {MOST_ROWS} nodes; lower them"
            )
        for name, value in (("expand", self.expand), ("rerank_by", self.rerank_by)):
            if value not in ("value", "confidence"):
                raise ArgumentError(f"{name}={value} is not known; choose value or confidence")

    @property
    def nodes(self) -> int:
        """Draft tokens verified in a cycle: never more than were met."""
        met = self.top_k + (self.depth - 1) * self.top_k**2
        return min(self.total_tokens, met) if self.rerank else self.top_k * self.depth


@dataclass(frozen=True)
class Candidates:
    """Every node met while expanding, level by level. ``parent`` is an index among them; -1 is the root."""

    tokens: Int[Tensor, "pool"]
    value: Float[Tensor, "pool"]
    confidence: Float[Tensor, "pool"]
    parent: Int[Tensor, "pool"]
    level_starts: tuple[int, ...]
    frontier: Int[Tensor, "expanded"]


class Eagle2:
    """Drafts a tree of its own shape in every cycle."""

    Config = Eagle2Config
    rejection = False
    path_only = True

    def __init__(self, config: Eagle2Config, target: Target, tokenizer: Any = None) -> None:
        if config.top_k > target.vocab:
            raise ArgumentError(f"top_k={config.top_k} exceeds the vocabulary of {target.vocab}")
        self._config = config
        self._head = EagleHead(config.weights, "eagle2", target, draft_vocab=config.draft_vocab, widest=config.top_k)
        self.max_rows = config.nodes + 1

    @staticmethod
    def check(config: Eagle2Config, target: Outline) -> None:
        check_head(config.weights, "eagle2", target)

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._head.begin(request, prefill, self._config.top_k * self._config.depth)

    def propose(self, context: Context) -> Draft:
        pool = self._expand()
        chosen = select(pool, self._config)
        node = torch.full((pool.tokens.shape[0] + 1,), -1, device=chosen.device)
        node[chosen] = torch.arange(1, chosen.shape[0] + 1, device=chosen.device)
        node[-1] = 0  # pool parent -1: the root
        parents = torch.cat([node.new_full((1,), -1), node[pool.parent[chosen]]])
        tokens = torch.cat([pool.tokens.new_full((1,), context.ids[-1]), pool.tokens[chosen]])
        tree = Tree.from_parents(parents, self._config.depth)
        return Draft(tokens, tree, log_confidence=pool.confidence[chosen])

    def observe(self, outcome: Outcome) -> None:
        self._head.observe(outcome)

    def networks(self) -> Networks:
        return self._head.networks()

    def _expand(self) -> Candidates:
        """Grow the pool: top_k nodes at the first level, top_k * top_k at each of the others."""
        k, depth = self._config.top_k, self._config.depth
        feature = self._head.catch_up()
        (value,), (columns,) = likeliest(self._head.draft.logits(feature), k)
        tokens = self._head.draft.tokens(columns)
        pools = [(tokens, value, value)]
        frontiers = [torch.arange(k, device=tokens.device)]  # pool indices of the nodes to expand, level by level
        features = feature.expand(k, -1)
        seen = own = torch.eye(k, dtype=torch.bool, device=tokens.device)
        starts = [0]
        for _ in range(depth - 1):
            output = self._head.extend(tokens, features, seen)
            confidence, columns = likeliest(self._head.draft.logits(output), k)
            children, cumulative = self._head.draft.tokens(columns).flatten(), (value[:, None] + confidence).flatten()
            confidence = confidence.flatten()
            starts.append(starts[-1] + pools[-1][0].shape[0])
            pools.append((children, cumulative, confidence))
            best = top(cumulative if self._config.expand == "value" else confidence, k)
            row = best // k
            # index_select: tensor[index], which takes any index, costs twice as much.
            tokens, value = children.index_select(0, best), cumulative.index_select(0, best)
            features, above = output.index_select(0, row), seen.index_select(0, row)
            frontiers.append(best + starts[-1])
            seen = torch.cat([above, own], 1)
        self._head.end_draft()
        pool_tokens, values, confidences = (torch.cat(part) for part in zip(*pools, strict=True))
        expanded = torch.cat(frontiers)
        # The last frontier was not expanded, so it has no children; the first level's parent is the root.
        parents = torch.cat([torch.full_like(tokens, -1), expanded[:-k].repeat_interleave(k)])
        return Candidates(pool_tokens, values, confidences, parents, tuple(starts), expanded)


def select(pool: Candidates, config: Eagle2Config) -> Int[Tensor, "chosen"]:
    """The nodes to verify, as ascending pool indices: ascending is level order, so parents come first."""
    if not config.rerank:
        return pool.frontier.sort().values
    score = pool.value if config.rerank_by == "value" else _best_below(pool)
    return top(score, config.nodes).sort().values


def _best_below(pool: Candidates) -> Float[Tensor, "pool"]:
    """Each node's own confidence or its best descendant's: ranking by it selects a node's ancestors too."""
    best = pool.confidence.clone()
    ends = (*pool.level_starts[1:], best.shape[0])
    for start, end in reversed(list(zip(pool.level_starts, ends, strict=True))[1:]):
        best = best.scatter_reduce(0, pool.parent[start:end], best[start:end], "amax")
    return best
