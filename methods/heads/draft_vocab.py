"""A reduced draft vocabulary: a draft ranks only the N tokens that the target's text uses most (FR-Spec, 2502.14856).

On a small target the draft's output head is most of what drafting costs: a fifth of a target step, at every depth. With
fewer rows a draft cannot propose a rare token. The target still can emit it, so the decoded text does not change. The
ranking lies beside the head's weights, in ``draft_vocab.safetensors``. Off (0) in the paper's settings.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.common.errors import ArgumentError, ConfigError
from methods.decode.target import Target
from methods.heads.checkpoints import Checkpoint
from methods.loading.tensor_files import read_tensors

FILE = "draft_vocab.safetensors"


class DraftHead:
    """The target's output head over all of its tokens (``size=0``) or the ``size`` most frequent ones.

    Args:
        checkpoint: the head that drafts; the ranking lies beside it.
        widest: children of the widest node, which need as many tokens.

    Raises:
        ArgumentError: if a size is asked for and there is no ranking, or it is too short.
    """

    def __init__(self, target: Target, checkpoint: Checkpoint, size: int, widest: int) -> None:
        self._target = target
        self._ids: Tensor | None = None
        if not size:
            return
        path = checkpoint.path.with_name(FILE)
        if not path.is_file():
            raise ArgumentError(
                f"draft_vocab={size} needs {FILE} beside {checkpoint.path}; there is none: set draft_vocab=0"
            )
        ranked = read_tensors(path).get("tokens", torch.empty(0))
        if not widest <= size <= len(ranked):
            raise ArgumentError(
                f"draft_vocab={size} must be 0 (all tokens) or lie in [{widest}, {len(ranked)}]: a node of this tree "
                f"has {widest} children, and {path} ranks {len(ranked)} tokens"
            )
        if ranked.is_floating_point() or len(set(ranked.tolist())) < len(ranked) or not _within(ranked, target.vocab):
            raise ConfigError(f"{path} must rank different tokens of the target's {target.vocab}; set draft_vocab=0")
        # Ascending ids, so that among equals the lowest id stays first.
        self._ids = ranked[:size].long().sort().values.to(target.head_device)
        self._project = target.linear(target.output_weight[self._ids])

    def logits(self, hidden: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n width"]:
        """Logits over the draft vocabulary; column j is token ``tokens(j)``."""
        if self._ids is None:
            return self._target.logits(hidden)
        return self._project(hidden)

    def rows(self, matrix: Tensor) -> Tensor:
        """The draft vocabulary's rows of a head's own output matrix or bias."""
        return matrix if self._ids is None else matrix[self._ids]

    def tokens(self, columns: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The token ids of columns."""
        return columns if self._ids is None else self._ids[columns]

    def spread(self, logits: Float[Tensor, "*n width"]) -> Float[Tensor, "*n vocab"]:
        """Logits over the whole vocabulary, minus infinity where the draft has none: for a rule that needs q."""
        if self._ids is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self._target.vocab), -torch.inf)
        full[..., self._ids] = logits
        return full


def _within(ids: Tensor, vocab: int) -> bool:
    return bool((ids >= 0).all() and (ids < vocab).all())
