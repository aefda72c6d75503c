"""Medusa-1 (Cai et al. 2024, arXiv 2401.10774): extra heads on the target's last hidden state, a static tree.

Head k reads the hidden state h that chose the root and predicts the token k+1 places below it:

    z_k = W_k ResBlock_k(h),   ResBlock(x) = x + SiLU(A x + b)

A node of depth d and rank r carries the r-th likeliest token of head d-1, whatever its ancestors. The number of heads
is read from the tensors: published configs name another.

Deviations from FasterDecoding/Medusa: heads run on the one accepted row, not on all 64; verification is
sample-and-match at every temperature (the reference's "typical acceptance" changes the distribution). Heads without an
output matrix of their own share the target's (``{k}.1.weight`` absent), as small models need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import Context, Draft, Networks, Outcome, Prefill, Request
from methods.common.errors import ArgumentError
from methods.decode.target import Target
from methods.decode.topk import top
from methods.decode.tree import from_list, parents_of_paths
from methods.heads.checkpoints import Checkpoint
from methods.heads.draft_vocab import DraftHead
from methods.heads.static_trees import fitted
from methods.loading.model_header import Outline

_FILES = ("medusa_lm_head.pt",)


@dataclass(frozen=True)
class MedusaConfig:
    """``tree``: a name of ``methods.heads.static_trees`` or a tree written out; ``draft_vocab``: see
    ``methods.heads.draft_vocab``; ``weights``: the heads.
    """

    tree: str = "mc_sim_7b_63"
    draft_vocab: int = 0
    weights: Any = None


class Medusa:
    """Fills the static tree from one pass of the heads."""

    Config = MedusaConfig
    rejection = False
    path_only = True

    def __init__(self, config: MedusaConfig, target: Target, tokenizer: Any = None) -> None:
        nodes = fitted(config.tree, widest=target.vocab)
        checkpoint = Checkpoint(config.weights, "medusa", _FILES)
        blocks, outputs = load_heads(checkpoint, target)
        self._blocks = [target.linear(*block) for block in blocks]
        self._width = max(path[-1] for path in nodes) + 1
        self._draft = DraftHead(target, checkpoint, config.draft_vocab, self._width)
        self._outputs = [target.linear(self._draft.rows(output)) for output in outputs]
        depth = max(len(path) for path in nodes)
        if depth > len(self._blocks):
            raise ArgumentError(f"tree is {depth} deep, these weights have {len(self._blocks)} heads")
        device = target.head_device
        self._tree = from_list(parents_of_paths(nodes), device)
        self._head_of = torch.tensor([len(path) - 1 for path in nodes], device=device)
        self._rank_of = torch.tensor([path[-1] for path in nodes], device=device)
        self._depth = depth
        self.max_rows = len(nodes) + 1

    @staticmethod
    def check(config: MedusaConfig, target: Outline) -> None:
        check_heads(Checkpoint(config.weights, "medusa", _FILES), target)

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._hidden = prefill.hidden[-1:]

    def propose(self, context: Context) -> Draft:
        ranked = self._draft.tokens(top(self._logits(self._hidden), self._width))
        root = ranked.new_full((1,), context.ids[-1])
        return Draft(torch.cat([root, ranked[self._head_of, self._rank_of]]), self._tree)

    def observe(self, outcome: Outcome) -> None:
        last = outcome.path[-1]
        self._hidden = outcome.hidden[last : last + 1]

    def networks(self) -> Networks:
        return [(self, "_logits")]

    def _logits(self, hidden: Tensor) -> Tensor:
        """Every head's logits over one hidden state, a row each."""
        states = [hidden + nn.functional.silu(block(hidden)) for block in self._blocks[: self._depth]]
        if not self._outputs:
            return self._draft.logits(torch.cat(states))  # one product for all heads: the matrix is read once
        return torch.cat([output(state) for state, output in zip(states, self._outputs, strict=False)])


def load_heads(checkpoint: Checkpoint, target: Target) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Residual blocks (weight, bias) and output matrices, one per head; none where the target's own is shared."""
    heads, own_output = check_heads(checkpoint, target)
    cast = {name: tensor.to(target.head_device, target.dtype) for name, tensor in checkpoint.tensors.items()}
    blocks = [(cast[f"{k}.0.linear.weight"], cast[f"{k}.0.linear.bias"]) for k in range(heads)]
    return blocks, [cast[f"{k}.1.weight"] for k in range(heads) if own_output]


def check_heads(checkpoint: Checkpoint, target: Target | Outline) -> tuple[int, bool]:
    """How many heads there are, and whether they have output matrices of their own, by the header of their file.

    Raises:
        ConfigError: for missing, unexpected or wrongly shaped tensors, and for Medusa-2, whose backbone is tuned too.
    """
    if any(name.startswith(("model.", "base_model.", "lm_head.")) for name in checkpoint.shapes):
        raise checkpoint.error("it carries a tuned backbone (Medusa-2), which is another target; use Medusa-1 heads")
    indices = {int(name.split(".")[0]) for name in checkpoint.shapes if name.split(".")[0].isdigit()}
    heads = max(indices, default=-1) + 1
    own_output = "0.1.weight" in checkpoint.shapes
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(max(heads, 1)):
        shapes[f"{k}.0.linear.weight"] = (target.hidden, target.hidden)
        shapes[f"{k}.0.linear.bias"] = (target.hidden,)
        if own_output:
            shapes[f"{k}.1.weight"] = (target.vocab, target.hidden)
    checkpoint.require(shapes)
    return heads, own_output
