"""Hydra (Ankner et al. 2024, arXiv 2402.05109): Medusa's tree, with heads that read the tokens drafted before them.

Head k predicts the child at depth k+1 from the path so far:

    u_k = [g; E(root); E(c_1); ...; E(c_k)]
    s   = A_k u_k + a_k + SiLU(B_k u_k + b_k),   then three times  s <- s + SiLU(C_k s + c_k)   (one shared block)
    z_k = U_k s + d_k

The released weights ("Hydra++", arch ``prefix-mlp``) take g from a prefix layer, one decoder layer over the target's
post-norm hidden states with a cache of its own; the plain arch ``mlp`` takes the hidden state itself.

Deviations from zankner/Hydra: sample-and-match at every temperature; the prefix cache only ever holds accepted rows,
so nothing is rewound; logits are computed for the nodes that have children, not for the whole tree.
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
from methods.decode.tree import chain, from_list, inner_levels, parents_of_paths
from methods.heads.checkpoints import Checkpoint
from methods.heads.draft_vocab import DraftHead
from methods.heads.static_trees import fitted
from methods.loading.model_header import Outline
from methods.runtime.fused import Product

_FILES = ("hydra_lm_head.pt",)

_PREFIX = "prefix_embeding_layer."
"""Spelled as in the released files."""

_BLOCKS = {True: (3, 5, 7), False: (1, 2, 3)}
"""Sequential indices of the one shared block, stored under three names; with a prefix, dropouts lie between."""


@dataclass(frozen=True)
class HydraConfig:
    """``tree``: a name of ``methods.heads.static_trees`` or a tree written out; ``draft_vocab``: see
    ``methods.heads.draft_vocab``; ``weights``: the heads.
    """

    tree: str = "mc_sim_7b_63"
    draft_vocab: int = 0
    weights: Any = None


class Hydra:
    """Fills the static tree level by level; each level's heads read their ancestors' tokens."""

    Config = HydraConfig
    rejection = False
    path_only = True

    def __init__(self, config: HydraConfig, target: Target, tokenizer: Any = None) -> None:
        nodes = fitted(config.tree, widest=target.vocab)
        parents = parents_of_paths(nodes)
        checkpoint = Checkpoint(config.weights, "hydra", _FILES)
        widest = max(path[-1] for path in nodes) + 1
        self._draft = DraftHead(target, checkpoint, config.draft_vocab, widest)
        self._heads = _load_heads(checkpoint, target, self._draft)
        self._prefix = PrefixLayer(checkpoint, target) if _has_prefix(checkpoint) else None
        depth = max(len(path) for path in nodes)
        if depth > len(self._heads):
            raise ArgumentError(f"tree is {depth} deep, these weights have {len(self._heads)} heads")
        self._device = target.head_device
        self._embedding = target.embedding.to(self._device)
        self._tree = from_list(parents, self._device)
        self._levels = inner_levels(parents, self._device)
        self.max_rows = len(parents)

    @staticmethod
    def check(config: HydraConfig, target: Outline) -> None:
        check_heads(Checkpoint(config.weights, "hydra", _FILES), target)

    def begin(self, request: Request, prefill: Prefill) -> None:
        if self._prefix:
            self._prefix.cache.reset(len(request.prompt_ids) + request.max_new_tokens + self.max_rows)
        self._new_rows = prefill.hidden

    def propose(self, context: Context) -> Draft:
        rows = self._prefix(self._new_rows) if self._prefix else self._new_rows
        tokens = torch.full((self.max_rows,), context.ids[-1], device=self._device)
        inputs: Tensor = torch.cat([rows[-1:], self._embed(tokens[:1])], 1)
        for depth, level in enumerate(self._levels):
            if depth:
                inputs = torch.cat([inputs[level.above], self._embed(tokens[level.nodes])], 1)
            ranked = self._draft.tokens(top(self._heads[depth](inputs), level.width))
            tokens[level.children] = ranked[level.row, level.rank]
        return Draft(tokens, self._tree)

    def observe(self, outcome: Outcome) -> None:
        self._new_rows = outcome.hidden[outcome.path]

    def networks(self) -> Networks:
        prefix: Networks = [(self._prefix, "_layers")] if self._prefix else []
        return prefix + [(self._heads, k) for k in range(len(self._heads))]

    def _embed(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self._embedding)


@dataclass(frozen=True)
class Head:
    """One head's products; calling it maps ``[nodes, (k+2) hidden]`` to logits ``[nodes, width]``.

    ``output`` is None where the heads share the target's matrix. ``width`` is the draft vocabulary's.
    """

    res: Product
    linear: Product
    block: Product
    output: Product | None
    draft: DraftHead

    def __call__(self, inputs: Tensor) -> Tensor:
        silu = nn.functional.silu
        state = self.res(inputs) + silu(self.linear(inputs))
        for _ in range(3):
            state = state + silu(self.block(state))
        return self.output(state) if self.output else self.draft.logits(state)


class PrefixLayer:
    """The stock Llama layer and final norm over the target's hidden states, row t at position t; causal."""

    def __init__(self, checkpoint: Checkpoint, target: Target) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

        shape = {"num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False}
        config = LlamaConfig.from_dict({**target.model.config.to_dict(), **shape})
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            layer: Any = LlamaDecoderLayer(config, layer_idx=0)
            norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        for module, prefix in ((layer, f"{_PREFIX}layers.0."), (norm, f"{_PREFIX}norm.")):
            state = {
                name: checkpoint.tensors[prefix + name].to(target.head_device, target.dtype)
                for name, _ in module.named_parameters()
            }
            module.load_state_dict(state, assign=True)
            module.eval().requires_grad_(False)
        self._layers = target.layers([layer], LlamaRotaryEmbedding(config).to(target.head_device), norm)
        self.cache = target.new_cache(1)

    def __call__(self, hidden: Tensor) -> Tensor:
        rows, past = hidden.shape[0], self.cache.length
        causal = chain(rows - 1, hidden.device).mask if past and rows > 1 else None
        output = self._layers(hidden, torch.arange(past, past + rows, device=hidden.device), causal, self.cache)
        self.cache.length += rows
        return output


def _has_prefix(checkpoint: Checkpoint) -> bool:
    return any(name.startswith(_PREFIX) for name in checkpoint.shapes)


def _load_heads(checkpoint: Checkpoint, target: Target, draft: DraftHead) -> list[Head]:
    """The heads, once every tensor of the file fits, the prefix layer's too.

    Raises:
        ConfigError: if the three stored blocks differ.
    """
    layout = check_heads(checkpoint, target)
    for k in range(layout.count):
        for part in ("weight", "bias"):
            first, *others = (checkpoint.tensors[f"hydra_mlp.{k}.{block}.linear.{part}"] for block in layout.blocks)
            if not all(torch.equal(first, other) for other in others):
                raise checkpoint.error(f"head {k} stores three different blocks where Hydra shares one")

    def pair(name: str) -> tuple[Tensor, Tensor]:
        weight, bias = (checkpoint.tensors[f"{name}.{part}"] for part in ("weight", "bias"))
        return weight.to(target.head_device, target.dtype), bias.to(target.head_device, target.dtype)

    def product(name: str) -> Product:
        return target.linear(*pair(name))

    def output(k: int) -> Product | None:
        if not layout.own_output:
            return None
        return target.linear(*(draft.rows(each) for each in pair(layout.output.format(k=k))))

    return [
        Head(
            res=product(f"hydra_mlp.{k}.{layout.mlp}.res_connection"),
            linear=product(f"hydra_mlp.{k}.{layout.mlp}.linear"),
            block=product(f"hydra_mlp.{k}.{layout.blocks[0]}.linear"),
            output=output(k),
            draft=draft,
        )
        for k in range(layout.count)
    ]


@dataclass(frozen=True)
class Layout:
    """Where a file keeps what: ``count`` heads, Sequential indices of their first layer and of the stored blocks, the
    name of an output matrix, and whether there are any."""

    count: int
    mlp: int
    blocks: tuple[int, ...]
    output: str
    own_output: bool


def check_heads(checkpoint: Checkpoint, target: Target | Outline) -> Layout:
    """Hold every tensor in the header of the file, the prefix layer's too, against the target.

    Raises:
        ConfigError: for missing, unexpected or wrongly shaped tensors.
    """
    hidden, vocab = target.hidden, target.vocab
    shapes: dict[str, tuple[int, ...]] = {}
    prefix = _has_prefix(checkpoint)
    mlp = 1 if prefix else 0  # the prefix arch starts with a dropout, which takes an index
    head_name = "hydra_lm_head.{k}.1" if prefix else "hydra_lm_head.{k}"
    indices = {int(name.split(".")[1]) for name in checkpoint.shapes if name.startswith("hydra_mlp.")}
    count = max(indices, default=0) + 1
    own_output = f"{head_name.format(k=0)}.weight" in checkpoint.shapes
    blocks: tuple[int, ...] = _BLOCKS[prefix]
    if f"hydra_mlp.0.{blocks[1]}.linear.weight" not in checkpoint.shapes:
        blocks = blocks[:1]  # our own files store what is shared once
    for k in range(count):
        for part in ("linear", "res_connection"):
            shapes[f"hydra_mlp.{k}.{mlp}.{part}.weight"] = (hidden, (k + 2) * hidden)
            shapes[f"hydra_mlp.{k}.{mlp}.{part}.bias"] = (hidden,)
        for block in blocks:
            shapes[f"hydra_mlp.{k}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"hydra_mlp.{k}.{block}.linear.bias"] = (hidden,)
        if own_output:
            shapes[f"{head_name.format(k=k)}.weight"] = (vocab, hidden)
            shapes[f"{head_name.format(k=k)}.bias"] = (vocab,)
    if prefix:
        shapes |= _prefix_shapes(target)
    ignored = [name for name in checkpoint.shapes if name.endswith("rotary_emb.inv_freq")]
    checkpoint.require(shapes, ignored=[*ignored, "input_embed_fn.weight", f"{_PREFIX}embed_tokens.weight"])
    return Layout(count, mlp, blocks, head_name, own_output)


def _prefix_shapes(target: Target | Outline) -> dict[str, tuple[int, ...]]:
    config = target.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, key, inner, hidden = (
        config.num_attention_heads * head_dim,
        config.num_key_value_heads * head_dim,
        config.intermediate_size,
        config.hidden_size,
    )
    layer = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{_PREFIX}layers.0.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {f"{_PREFIX}norm.weight": (hidden,)}
