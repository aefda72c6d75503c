"""The draft head that EAGLE (arXiv 2401.15077) and EAGLE-2 share: one decoder layer over (feature, next token) pairs.

A feature f_i is the target's *post-norm* hidden state of token i. The pair (f_i, E(t_{i+1})) sits at position i and
predicts f_{i+1}; the target's own output head turns that into a distribution over t_{i+2}:

    x = W_fc [E(t_{i+1}); f_i] (+ b_fc)        embedding first, feature second
    x = x + Attention(x)                       no input norm: f is normalised already
    f' = x + MLP(RMSNorm(x))                   no final norm

The layer is the stock Llama layer with its input norm left out. Its cache keeps true pairs only: rows of a draft are
written behind them and forgotten when the next cycle starts.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from methods.base import Networks, Outcome, Prefill, Request
from methods.decode.target import Target
from methods.decode.tree import chain
from methods.heads.checkpoints import Checkpoint
from methods.heads.draft_vocab import DraftHead
from methods.loading.model_header import Outline

_FILES = ("pytorch_model.bin", "model.safetensors")
_EMBEDDING = "embed_tokens.weight"


class EagleHead:
    """A loaded head and its ``cache`` of true pairs: after ``catch_up``, as many as the target's cache has rows."""

    def __init__(self, weights: Any, method: str, target: Target, *, draft_vocab: int = 0, widest: int = 1) -> None:
        checkpoint = Checkpoint(weights, method, _FILES)
        self.draft = DraftHead(target, checkpoint, draft_vocab, widest)
        layer, rotary, fc = _build(checkpoint, target)
        self._layers, self._fc = target.layers([layer], rotary), target.linear(fc.weight, fc.bias)
        self._embedding = target.embedding.to(target.head_device)
        self.cache = target.new_cache(1)

    def begin(self, request: Request, prefill: Prefill, rows: int) -> None:
        """Forget the text before. ``rows`` bounds the draft rows of a cycle."""
        self.cache.reset(len(request.prompt_ids) + request.max_new_tokens + rows)
        self._features = prefill.hidden
        self._tokens = torch.tensor([*request.prompt_ids[1:], prefill.root], device=prefill.hidden.device)

    def observe(self, outcome: Outcome) -> None:
        """Store the true features of the cycle's root and accepted tokens, each with the token that came after it."""
        self._features = outcome.hidden[outcome.path]
        self._tokens = torch.tensor(outcome.tokens, device=outcome.hidden.device)

    def catch_up(self) -> Float[Tensor, "1 hidden"]:
        """Run the stored pairs into the cache, to stay; the last output is the predicted feature of the root."""
        rows, past = self._tokens.shape[0], self.cache.length
        offsets = torch.arange(rows, device=self._tokens.device)
        causal = chain(rows - 1, self._tokens.device).mask if past and rows > 1 else None
        output = self._run(self._tokens, self._features, offsets + past, causal)
        self.cache.length += rows
        self._true, self._level = self.cache.length, 0
        return output[-1:]

    def extend(
        self, tokens: Int[Tensor, "rows"], features: Float[Tensor, "rows hidden"], tree: Bool[Tensor, "rows drafted"]
    ) -> Float[Tensor, "rows hidden"]:
        """One level of the draft: every row at the same position, seeing all true pairs and ``tree``'s draft rows.

        ``tree`` covers the draft rows written since ``catch_up``, these rows included (they come last).
        """
        past, rows = self.cache.length, tokens.shape[0]
        level = torch.full_like(tokens, self._true + self._level)
        output = self._run(tokens, features, level, tree)
        self.cache.length = past + rows
        self._level += 1
        return output

    def end_draft(self) -> None:
        """Forget the draft rows; only true pairs survive a cycle."""
        self.cache.length = self._true

    def networks(self) -> Networks:
        """The layer and the output head, as ``methods.base.Drafter`` describes it."""
        return [(self, "_run"), (self.draft, "logits")]

    def _run(self, tokens: Tensor, features: Tensor, positions: Tensor, tail: Tensor | None) -> Tensor:
        embedded = nn.functional.embedding(tokens, self._embedding)
        return self._layers(self._fc(torch.cat([embedded, features], -1)), positions, tail, self.cache)


def check_head(weights: Any, method: str, target: Target | Outline) -> None:
    """Refuse a head that does not fit the target, by the header of its file.

    Raises:
        ConfigError: as ``_empty``.
    """
    _empty(Checkpoint(weights, method, _FILES), target)


def _build(checkpoint: Checkpoint, target: Target) -> tuple[Any, Any, nn.Linear]:
    """The modules of a head, filled strictly from its checkpoint."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config, layer, fc = _empty(checkpoint, target)
    device = target.head_device
    cast = {name: tensor.to(device, target.dtype) for name, tensor in checkpoint.tensors.items() if name != _EMBEDDING}
    prefix = "layers.0."
    layer.load_state_dict({k.removeprefix(prefix): v for k, v in cast.items() if k.startswith(prefix)}, assign=True)
    fc.load_state_dict({k.removeprefix("fc."): v for k, v in cast.items() if k.startswith("fc.")}, assign=True)
    return layer.eval().requires_grad_(False), LlamaRotaryEmbedding(config).to(device), fc.requires_grad_(False)


def _empty(checkpoint: Checkpoint, target: Target | Outline) -> tuple[Any, Any, nn.Linear]:
    """The head's config and its modules without weights, once the checkpoint's header fits them and the target.

    Raises:
        ConfigError: for an EAGLE-3 head, another hidden size or vocabulary, or a bias that disagrees with the config.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    if any(name.startswith(("midlayer.", "d2t", "t2d")) for name in checkpoint.shapes):
        raise checkpoint.error("it is an EAGLE-3 head, another architecture; use an EAGLE-1/2 head (yuhuili/EAGLE-...)")
    if not checkpoint.config:
        raise checkpoint.error("its folder has no config.json, which says its heads, RoPE base and norm epsilon")
    declared = dict(checkpoint.config)
    has_bias = "fc.bias" in checkpoint.shapes
    if has_bias != bool(declared.get("bias", True)):
        raise checkpoint.error(
            f"config.json says bias={declared.get('bias', True)}, but fc.bias is {'there' if has_bias else 'missing'}"
        )
    try:
        config = LlamaConfig.from_dict({**declared, "num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False})
    except Exception as error:
        raise checkpoint.error(f"config.json describes no layer ({str(error).splitlines()[0]})") from error
    config._attn_implementation = "sdpa"
    if (config.hidden_size, config.vocab_size) != (target.hidden, target.vocab):
        raise checkpoint.error(
            f"it was made for hidden size {config.hidden_size} and {config.vocab_size} tokens, the target has "
            f"{target.hidden} and {target.vocab}"
        )
    with torch.device("meta"):
        layer: Any = LlamaDecoderLayer(config, layer_idx=0)
        layer.input_layernorm = nn.Identity()
        fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=has_bias)
    shapes = {f"layers.0.{name}": tuple(p.shape) for name, p in layer.named_parameters()}
    shapes |= {f"fc.{name}": tuple(p.shape) for name, p in fc.named_parameters()}
    # A stored embedding is a frozen copy of the target's; drafting uses the target's own, so a head may come without.
    if _EMBEDDING in checkpoint.shapes:
        shapes[_EMBEDDING] = (target.vocab, target.hidden)
    checkpoint.require(shapes)
    return config, layer, fc
