"""EAGLE's head in training (arXiv 2401.15077, section 4.2): regress the next feature, and match the token it implies.

    loss = feature_weight * smooth_l1(f', f) + token_weight * cross_entropy(p(f), q(f'))

where f is the target's next post-norm state and f' the head's. The paper's weights are 1 and 0.1, with uniform noise of
width 0.1 on the input features. ``own_share`` goes beyond the paper: that share of the input features is the head's own
prediction, as in a draft that is deeper than one token (scheduled sampling, arXiv 1506.03099).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.common.limits import within
from methods.train.data import Batch
from methods.train.heads import Frozen, cross_entropy, hits, regress

_DEPTHS = 4
"""Agreement is reported for this many tokens ahead."""


@dataclass(frozen=True)
class EagleSettings:
    """Weights, noise and share as above; ``intermediate_size`` of the layer's MLP, None for the target's."""

    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.1
    own_share: float = 0.0
    intermediate_size: int | None = None

    def __post_init__(self) -> None:
        within("own_share", self.own_share, 0, 1)


class EagleTraining(nn.Module):
    """The modules of ``methods.heads.eagle_head``, over whole windows of text."""

    Settings = EagleSettings

    def __init__(self, frozen: Frozen, settings: EagleSettings) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        width = settings.intermediate_size or frozen.config.intermediate_size
        sizes = {"num_hidden_layers": 1, "intermediate_size": width}
        self.config = LlamaConfig.from_dict({**frozen.config.to_dict(), **sizes})
        self.config._attn_implementation = "sdpa"
        self.fc = nn.Linear(2 * frozen.hidden, frozen.hidden)
        self.layer = LlamaDecoderLayer(self.config, layer_idx=0)
        self.layer.input_layernorm = nn.Identity()
        self._rotary = LlamaRotaryEmbedding(self.config)
        self._frozen = frozen
        self._weights = (settings.feature_weight, settings.token_weight)
        self._noise, self._own = settings.noise, settings.own_share

    def forward(
        self, features: Float[Tensor, "batch rows hidden"], following: Int[Tensor, "batch rows"]
    ) -> Float[Tensor, "batch rows hidden"]:
        """Each feature with the token that came after it -> the next feature."""
        x = self.fc(torch.cat([self._frozen.embed(following), features], -1))
        positions = torch.arange(x.shape[1], device=x.device)[None]
        output: Tensor = self.layer(x, position_embeddings=self._rotary(x, positions))
        return output

    def start(self, batches: Iterable[Batch]) -> None:
        """Start as the linear map that best predicts the next feature; the layer adds nothing to it at first."""
        nn.init.zeros_(self.layer.self_attn.o_proj.weight)
        nn.init.zeros_(self.layer.mlp.down_proj.weight)
        regress(self.fc, (self._pairs(batch) for batch in batches))

    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        where = batch.together(1)
        inputs = torch.cat([self._frozen.embed(batch.tokens[:, 1:]), batch.features[:, :-1]], -1)
        return inputs[where], batch.features[:, 1:][where]

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """The two terms above, over every position whose successor is of the same text."""
        following, wanted, where = batch.tokens[:, 1:], batch.features[:, 1:], batch.together(1)
        features = batch.features[:, :-1]
        if self._own:
            with torch.no_grad():
                own = self(features, following)[:, :-1].float()
            chosen = torch.rand(own.shape[:2], generator=generator) < self._own
            chosen &= batch.together(1)[:, :-1]
            features = torch.cat([features[:, :1], torch.where(chosen[..., None], own, features[:, 1:])], 1)
        width = self._noise * (torch.rand(features.shape, generator=generator) - 0.5) * 2
        predicted = self(features + width, following)
        distance = nn.functional.smooth_l1_loss(predicted.float(), wanted, reduction="none").mean(-1)
        regression = (distance * where).sum() / where.sum().clamp(min=1)
        matching = cross_entropy(self._frozen.logits(predicted), self._frozen.teacher(wanted), where)
        return self._weights[0] * regression + self._weights[1] * matching

    @torch.no_grad()
    def agreement(self, batch: Batch) -> list[tuple[int, int]]:
        """Depth d: every feature was predicted from features that were themselves predicted d - 1 times over."""
        features, found = batch.features, []
        teacher = self._frozen.teacher(batch.features)
        for depth in range(1, _DEPTHS + 1):
            predicted = self(features[:, :-1], batch.tokens[:, 1:]).float()
            where = batch.together(depth)[:, : predicted.shape[1] + 1 - depth]
            found.append(hits(self._frozen.logits(predicted)[:, depth - 1 :], teacher[:, depth:], where))
            features = torch.cat([features[:, :1], predicted], 1)
        return found

    def export(self, folder: Path) -> None:
        """``model.safetensors`` with the published keys, less the copy of the target's embedding."""
        named = {f"layers.0.{name}": value for name, value in self.layer.named_parameters()}
        named |= {f"fc.{name}": value for name, value in self.fc.named_parameters()}
        save_file(
            {name: value.detach().bfloat16().contiguous() for name, value in named.items()},
            folder / "model.safetensors",
        )
        keep = (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "vocab_size",
            "max_position_embeddings",
            "rope_parameters",
            "hidden_act",
        )
        declared = {key: value for key, value in self.config.to_dict().items() if key in keep}
        text = json.dumps(
            {
                **declared,
                # Where the authors' code looks for it; without it, it takes 10,000 and drafts worse, without an error.
                "rope_theta": declared["rope_parameters"]["rope_theta"],
                "num_hidden_layers": 1,
                "bias": True,
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
            },
            indent=1,
        )
        (folder / "config.json").write_text(text, encoding="utf-8")
