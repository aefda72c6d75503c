"""Hydra's heads in training (arXiv 2402.05109): Medusa's objective, each head also reading the tokens before its own.

    loss = sum over k of decay^k * cross_entropy(head k of (g_i; E(t_{i+1}); ... E(t_{i+1+k})), p_{i+1+k})

This is the paper's "Hydra++": g comes from a prefix layer over the target's states, and the target's distribution is
the teacher. All heads share the target's output matrix, as small models need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.train.data import Batch
from methods.train.heads import Frozen, SeveralHeads, cross_entropy, hits, regress


class HydraTraining(nn.Module):
    """The modules of ``methods.hydra_heads``, over whole windows of text."""

    Settings = SeveralHeads

    def __init__(self, frozen: Frozen, settings: SeveralHeads) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

        super().__init__()
        hidden = frozen.hidden
        config = LlamaConfig.from_dict({**frozen.config.to_dict(), "num_hidden_layers": 1})
        config._attn_implementation = "sdpa"
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self._rotary = LlamaRotaryEmbedding(config)
        self.res = nn.ModuleList(nn.Linear((k + 2) * hidden, hidden) for k in range(settings.heads))
        self.linear = nn.ModuleList(nn.Linear((k + 2) * hidden, hidden) for k in range(settings.heads))
        self.block = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(settings.heads))
        self._frozen, self._decay = frozen, settings.decay

    def prefix(self, features: Float[Tensor, "batch rows hidden"]) -> Float[Tensor, "batch rows hidden"]:
        """g: one decoder layer and a norm over the target's states."""
        positions = torch.arange(features.shape[1], device=features.device)[None]
        normed: Tensor = self.norm(self.layer(features, position_embeddings=self._rotary(features, positions)))
        return normed

    def start(self, batches: Iterable[Batch]) -> None:
        """Start each head as the linear map that best predicts its feature; the non-linear parts add nothing to it at
        first.
        """
        for module in (self.layer.self_attn.o_proj, self.layer.mlp.down_proj, *self.linear, *self.block):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
        kept = list(batches)
        for k, linear in enumerate(self.res):
            regress(linear, (self._pairs(k, batch) for batch in kept))

    def _pairs(self, k: int, batch: Batch) -> tuple[Tensor, Tensor]:
        where = batch.together(k + 1)
        inputs = self._inputs(k, self.prefix(batch.features), batch.tokens)
        return inputs[where], batch.features[:, k + 1 :][where]

    def _inputs(self, k: int, prefix: Tensor, tokens: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows inputs"]:
        rows = prefix.shape[1] - k - 1
        read = [self._frozen.embed(tokens[:, 1 + j : 1 + j + rows]) for j in range(k + 1)]
        return torch.cat([prefix[:, :rows], *read], -1)

    def head(self, k: int, prefix: Tensor, tokens: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows rows2"]:
        """Logits of head k wherever k + 1 tokens follow: ``[batch, rows - k - 1, kept tokens]``."""
        inputs = self._inputs(k, prefix, tokens)
        silu = nn.functional.silu
        state = self.res[k](inputs) + silu(self.linear[k](inputs))
        for _ in range(3):
            state = state + silu(self.block[k](state))
        return self._frozen.logits(state)

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """The sum above; ``generator`` is not used."""
        teacher, prefix = self._frozen.teacher(batch.features), self.prefix(batch.features)
        total = torch.zeros(())
        for k in range(len(self.res)):
            logits = self.head(k, prefix, batch.tokens)
            total = total + self._decay**k * cross_entropy(logits, teacher[:, k + 1 :], batch.together(k + 1))
        return total

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[tuple[int, int]]:
        """By head, given the true tokens before its own."""
        teacher, prefix = self._frozen.teacher(batch.features), self.prefix(batch.features)
        return [
            hits(self.head(k, prefix, batch.tokens), teacher[:, k + 1 :], batch.together(k + 1))
            for k in range(len(self.res))
        ]

    def export(self, folder: Path) -> None:
        """``hydra_lm_head.safetensors`` with the published keys; the shared block once, no output matrices."""
        modules = {"prefix_embeding_layer.layers.0": self.layer, "prefix_embeding_layer.norm": self.norm}
        for k in range(len(self.res)):
            modules[f"hydra_mlp.{k}.1.res_connection"] = self.res[k]
            modules[f"hydra_mlp.{k}.1.linear"] = self.linear[k]
            modules[f"hydra_mlp.{k}.3.linear"] = self.block[k]
        tensors = {
            f"{prefix}.{name}": value.detach().bfloat16().contiguous()
            for prefix, module in modules.items()
            for name, value in module.named_parameters()
        }
        save_file(tensors, folder / "hydra_lm_head.safetensors")
        config = {"hydra_num_heads": len(self.res), "hydra_num_layers": 4, "hydra_head_arch": "prefix-mlp"}
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
