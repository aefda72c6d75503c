"""A draft model for speculative sampling: the target's first layers, distilled (forward KL, arXiv 2310.08461).

    loss = cross_entropy(p_i, q_i)      p the target's distribution, q the draft's, at every position of the text

The draft uses the target's embedding and output head, both frozen and not exported, so its file holds only its layers
and its final norm.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.common.errors import ArgumentError
from methods.common.limits import within
from methods.train.data import Batch
from methods.train.heads import Frozen, cross_entropy, hits, regress


@dataclass(frozen=True)
class SpSSettings:
    """``intermediate_size`` prunes the MLPs to that many neurons, those of the largest weights; None keeps all."""

    layers: int = 2
    intermediate_size: int | None = None

    def __post_init__(self) -> None:
        within("layers", self.layers, 1, 1000)


class SpSTraining(nn.Module):
    """The first ``layers`` layers of the target and its final norm."""

    Settings = SpSSettings

    def __init__(self, frozen: Frozen, settings: SpSSettings) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        super().__init__()
        base, layers = frozen.base, settings.layers
        width = settings.intermediate_size or frozen.config.intermediate_size
        if width > frozen.config.intermediate_size:
            raise ArgumentError(
                f"intermediate_size={width} must be at most the target's, {frozen.config.intermediate_size}, "
                "or null to keep all"
            )
        self.layers = nn.ModuleList(copy.deepcopy(layer).cpu().float() for layer in base.layers[:layers])
        self.norm = copy.deepcopy(base.norm).cpu().float()
        self.requires_grad_(True)
        for layer in self.layers:
            _prune(layer.get_submodule("mlp"), width)
        sizes = {"num_hidden_layers": layers, "intermediate_size": width}
        self.config = LlamaConfig.from_dict({**frozen.config.to_dict(), **sizes})
        self.config._attn_implementation = "sdpa"
        for layer in self.layers:
            layer.get_submodule("self_attn").config = self.config
        self._rotary = LlamaRotaryEmbedding(self.config)
        self._frozen = frozen

    def forward(self, tokens: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows hidden"]:
        """The draft's last hidden states."""
        normed: Tensor = self.norm(self._stack(tokens))
        return normed

    def _stack(self, tokens: Tensor) -> Tensor:
        x = self._frozen.embed(tokens)
        rotary = self._rotary(x, torch.arange(x.shape[1], device=x.device)[None])
        for layer in self.layers:
            x = layer(x, position_embeddings=rotary)
        return x

    def start(self, batches: Iterable[Batch]) -> None:
        """Fit the last layer's MLP so that the draft ends with the target's final states.

        An early layer of the target writes for the layer after it, and no output head reads it. With three layers of
        SmolLM2 agreement then starts at 0.17 instead of 0.04.
        """
        regress(self.layers[-1].get_submodule("mlp").get_submodule("down_proj"), map(self._pairs, batches))

    @torch.no_grad()
    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last MLP's inner activations, and what it should add: the final norm sees only the sum's direction, so
        the target's state before its own norm is taken at the sum's length."""
        inner: list[Tensor] = []
        product = self.layers[-1].get_submodule("mlp").get_submodule("down_proj")
        with product.register_forward_pre_hook(lambda _, inputs: inner.append(inputs[0])):
            x = self._stack(batch.tokens)
        residual = x - product(inner[0])
        scale = self.norm.weight
        wanted = batch.features * scale / (scale * scale + 1e-6)  # a division that tolerates a scale of zero
        wanted = wanted * residual.norm(dim=-1, keepdim=True) / wanted.norm(dim=-1, keepdim=True)
        where = batch.together(0)
        return inner[0][where], (wanted - residual)[where]

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """The cross-entropy above; ``generator`` is not used."""
        logits = self._frozen.logits(self(batch.tokens))
        return cross_entropy(logits, self._frozen.teacher(batch.features), batch.together(0))

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[tuple[int, int]]:
        """One depth: the draft reads tokens only, so it is as good at any."""
        logits = self._frozen.logits(self(batch.tokens))
        return [hits(logits, self._frozen.teacher(batch.features), batch.together(0))]

    def export(self, folder: Path) -> None:
        """A model folder in hub layout whose config says that the embedding is the target's."""
        tensors = {f"model.{name}": value.detach().bfloat16().contiguous() for name, value in self.named_parameters()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = {**self.config.to_dict(), "architectures": ["LlamaForCausalLM"], "shares_embedding": True}
        (folder / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")


@torch.no_grad()
def _prune(mlp: Any, width: int) -> None:
    """Keep the ``width`` neurons whose weights are largest, in their order."""
    weight = mlp.gate_proj.weight.norm(dim=1) * mlp.up_proj.weight.norm(dim=1) * mlp.down_proj.weight.norm(dim=0)
    kept = weight.topk(width).indices.sort().values
    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        module = getattr(mlp, name)
        module.weight = nn.Parameter(module.weight.index_select(dim, kept))
        module.out_features, module.in_features = module.weight.shape
