"""What the loop needs of a head in training, and what heads share: the frozen target side and the losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from methods.base import Sampling
from methods.common.limits import within
from methods.decode.sampling import distribution, log_distribution
from methods.decode.target import Target
from methods.train.data import Batch


class Head(Protocol):
    """A module in training. Its loss and its agreement come from one batch of true text and true features.

    Its class is made as ``Class(frozen, settings)``. ``Class.Settings`` is a frozen dataclass, which checks its own
    ranges; ``conf/train.yaml`` may set it under ``heads.<method>``.
    """

    def start(self, batches: Iterable[Batch]) -> None:
        """Initialise the weights from these batches."""

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """What is minimised."""

    def agreement(self, batch: Batch) -> list[tuple[int, int]]:
        """(hits, trials) for each depth: how often the head's likeliest token is the target's."""

    def export(self, folder: Path) -> None:
        """Write the published layout, in bfloat16."""

    def parameters(self) -> Any:
        """What is trained."""


@dataclass(frozen=True)
class SeveralHeads:
    """Settings of a method with a head for each depth: how many, and how much less each further one weighs."""

    heads: int = 4
    decay: float = 0.8

    def __post_init__(self) -> None:
        within("heads", self.heads, 1, 16)


class Frozen:
    """The target's embedding, its output head over the tokens that the cross-entropy runs over, and its stock ``base``.

    ``rows``: those tokens. Other tokens do not enter the loss; with 8,192 of SmolLM2's 49,152 tokens kept, one token in
    a hundred of its own text is left out.
    """

    def __init__(self, target: Target, rows: Int[Tensor, "rows"]) -> None:
        self.config, self.base = target.model.config, target.model.base_model
        self.hidden, self.vocab = target.hidden, target.vocab
        # On the CPU, where heads are trained: batches come from files, whatever the target's device was.
        self.embedding = target.embedding.detach().cpu().float()
        self.output = target.model.get_output_embeddings().weight.detach().cpu()[rows].float()

    def embed(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """The target's own embedding, which no head tunes."""
        return nn.functional.embedding(tokens, self.embedding)

    def logits(self, hidden: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n rows"]:
        """The target's output head over the kept tokens."""
        return nn.functional.linear(hidden, self.output)

    @torch.no_grad()
    def teacher(self, features: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n rows"]:
        """The target's distribution over the kept tokens."""
        return distribution(self.logits(features), Sampling(1.0))


@torch.no_grad()
def regress(linear: Any, pairs: Iterator[tuple[Float[Tensor, "n inputs"], Float[Tensor, "n outputs"]]]) -> None:
    """Set a linear module, with a bias or without, to the least-squares fit of outputs from inputs, with a tiny ridge.

    The closed form is worth hundreds of steps. An EAGLE head for SmolLM2 starts at the agreement (0.32) that 100 steps
    of AdamW reach from random weights, and after 100 steps it stands at 0.41 instead of 0.33.
    """
    biased = int(linear.bias is not None)
    width = linear.in_features + biased
    gram = torch.zeros(width, width, dtype=torch.float64)
    moments = torch.zeros(width, linear.out_features, dtype=torch.float64)
    for inputs, outputs in pairs:
        rows = nn.functional.pad(inputs, (0, biased), value=1.0)  # the last column is the bias
        rows = rows.double()  # activations differ by orders of magnitude, and the ridge is slight
        gram += rows.T @ rows
        moments += rows.T @ outputs.double()
    gram.diagonal().add_(1e-6 * gram.diagonal().mean())
    solved = torch.linalg.solve(gram, moments).float()
    linear.weight.copy_(solved[: linear.in_features].T)
    if biased:
        linear.bias.copy_(solved[-1])


def cross_entropy(
    logits: Float[Tensor, "*n rows"], teacher: Float[Tensor, "*n rows"], where: Bool[Tensor, "*n"]
) -> Float[Tensor, ""]:
    """Mean over the marked positions of the cross-entropy against the target's own distribution."""
    each = -(teacher * log_distribution(logits)).sum(-1)
    return (each * where).sum() / where.sum().clamp(min=1)


def hits(
    logits: Float[Tensor, "*n rows"], teacher: Float[Tensor, "*n rows"], where: Bool[Tensor, "*n"]
) -> tuple[int, int]:
    """How often both have the same likeliest token, and of how many."""
    same = (logits.argmax(-1) == teacher.argmax(-1)) & where
    return int(same.sum()), int(where.sum())
