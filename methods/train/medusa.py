"""Medusa's heads in training (arXiv 2401.10774, section 2.2.1): each predicts one token further ahead.

    loss = sum over k of decay^k * cross_entropy(head k at position i, the target's distribution at position i + 1 + k)

The target is frozen (Medusa-1) and the decay is the published 0.8. All heads share the target's output matrix: with one
of its own, each head would be larger than this small target. The paper trains on the text's tokens; here the target's
distribution takes their place, since it is at hand and says more per token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.train.data import Batch
from methods.train.heads import Frozen, SeveralHeads, cross_entropy, hits


class MedusaTraining(nn.Module):
    """One residual block a head."""

    Settings = SeveralHeads

    def __init__(self, frozen: Frozen, settings: SeveralHeads) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(frozen.hidden, frozen.hidden) for _ in range(settings.heads))
        for parameter in self.blocks.parameters():
            nn.init.zeros_(parameter)  # as published: the start is the target's own prediction, one token too early
        self._frozen, self._decay = frozen, settings.decay

    def forward(self, features: Float[Tensor, "*n hidden"], head: int) -> Float[Tensor, "*n hidden"]:
        """The state whose output-head logits are head ``head``'s."""
        return features + nn.functional.silu(self.blocks[head](features))

    def start(self, batches: Iterable[Batch]) -> None:
        """Do nothing: the weights set in the constructor are the published start."""

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """The sum above; ``generator`` is not used."""
        teacher = self._frozen.teacher(batch.features)
        total = torch.zeros(())
        for head in range(len(self.blocks)):
            ahead = head + 1
            logits = self._frozen.logits(self(batch.features[:, :-ahead], head))
            total = total + self._decay**head * cross_entropy(logits, teacher[:, ahead:], batch.together(ahead))
        return total

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[tuple[int, int]]:
        """By head."""
        teacher = self._frozen.teacher(batch.features)
        return [
            hits(
                self._frozen.logits(self(batch.features[:, : -head - 1], head)),
                teacher[:, head + 1 :],
                batch.together(head + 1),
            )
            for head in range(len(self.blocks))
        ]

    def export(self, folder: Path) -> None:
        """``medusa_lm_head.safetensors`` with the published keys, less the output matrices."""
        tensors = {}
        for number, block in enumerate(self.blocks):
            for part, value in block.named_parameters():
                tensors[f"{number}.0.linear.{part}"] = value.detach().bfloat16().contiguous()
        save_file(tensors, folder / "medusa_lm_head.safetensors")
        config = {"medusa_num_heads": len(self.blocks), "medusa_num_layers": 1}
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
