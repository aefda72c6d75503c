"""Writes draft heads for a small Llama in the published formats, key for key, with random values.

Random heads draft badly, which is what a losslessness test wants: nearly every rejection path is walked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from methods.decode.target import Target
from methods.heads.draft_vocab import FILE
from methods.loading.model_header import Outline

Shapes = dict[str, tuple[int, ...]]


def write_eagle(
    folder: Path, target: Target, *, bias: bool = True, scale: float = 0.3, kv_heads: int | None = None
) -> Path:
    """``pytorch_model.bin`` in float32, as the Vicuna and LLaMA2 heads are; ``bias=False`` as the LLaMA3 ones."""
    shapes, facts = eagle(target, bias=bias, kv_heads=kv_heads)
    return _write(folder, "pytorch_model.bin", _random(shapes, scale), facts)


def eagle(
    target: Target | Outline, *, bias: bool = True, kv_heads: int | None = None
) -> tuple[Shapes, dict[str, object]]:
    """An EAGLE head's tensors and its config."""
    config = target.config
    hidden, inner, heads = target.hidden, config.intermediate_size, config.num_attention_heads
    head_dim, kv = hidden // heads, kv_heads or config.num_key_value_heads
    shapes = {
        "embed_tokens.weight": (target.vocab, hidden),
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (hidden, hidden),
        "layers.0.self_attn.k_proj.weight": (kv * head_dim, hidden),
        "layers.0.self_attn.v_proj.weight": (kv * head_dim, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, hidden),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }
    if bias:
        shapes["fc.bias"] = (hidden,)
    facts = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
    }
    return shapes, facts if bias else facts | {"bias": False}


def write_medusa(
    folder: Path, target: Target | Outline, *, heads: int = 5, tied: bool = False, scale: float = 0.3
) -> Path:
    """``medusa_lm_head.pt``; the config names two heads whatever the file holds, as the published one does."""
    tensors = _random(medusa(target, heads=heads, tied=tied), scale)
    return _write(folder, "medusa_lm_head.pt", tensors, {"medusa_num_heads": 2, "medusa_num_layers": 1})


def medusa(target: Target | Outline, *, heads: int = 5, tied: bool = False) -> Shapes:
    """Medusa's tensors."""
    shapes: Shapes = {}
    for k in range(heads):
        shapes[f"{k}.0.linear.weight"] = (target.hidden, target.hidden)
        shapes[f"{k}.0.linear.bias"] = (target.hidden,)
        if not tied:
            shapes[f"{k}.1.weight"] = (target.vocab, target.hidden)
    return shapes


def write_hydra(folder: Path, target: Target, *, prefix: bool = True, heads: int = 4, scale: float = 0.3) -> Path:
    """``hydra_lm_head.pt`` of arch prefix-mlp (with its stored embeddings and tied blocks) or mlp."""
    blocks = (3, 5, 7) if prefix else (1, 2, 3)
    shapes = hydra(target, prefix=prefix, heads=heads)
    # Three names, one tensor.
    first = {name: re.sub(rf"\.({blocks[1]}|{blocks[2]})\.linear\.", f".{blocks[0]}.linear.", name) for name in shapes}
    drawn = _random({name: shape for name, shape in shapes.items() if first[name] == name}, scale)
    tensors = {name: drawn[first[name]] for name in shapes}
    facts = {"hydra_num_heads": heads, "hydra_num_layers": 4, "hydra_head_arch": "prefix-mlp" if prefix else "mlp"}
    return _write(folder, "hydra_lm_head.pt", tensors, facts)


def hydra(target: Target | Outline, *, prefix: bool = True, heads: int = 4) -> Shapes:
    """Hydra's tensors; the shared block stands under three names."""
    hidden, vocab, config = target.hidden, target.vocab, target.config
    mlp, blocks = (1, (3, 5, 7)) if prefix else (0, (1, 2, 3))
    shapes: Shapes = {"input_embed_fn.weight": (vocab, hidden)}
    for k in range(heads):
        for part in ("linear", "res_connection"):
            shapes[f"hydra_mlp.{k}.{mlp}.{part}.weight"] = (hidden, (k + 2) * hidden)
            shapes[f"hydra_mlp.{k}.{mlp}.{part}.bias"] = (hidden,)
        for block in blocks:
            shapes[f"hydra_mlp.{k}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"hydra_mlp.{k}.{block}.linear.bias"] = (hidden,)
        output = f"hydra_lm_head.{k}.1" if prefix else f"hydra_lm_head.{k}"
        shapes[f"{output}.weight"] = (vocab, hidden)
        shapes[f"{output}.bias"] = (vocab,)
    if prefix:
        head_dim = hidden // config.num_attention_heads
        kv, inner = config.num_key_value_heads * head_dim, config.intermediate_size
        layer = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"prefix_embeding_layer.layers.0.{name}.weight": shape for name, shape in layer.items()}
        shapes["prefix_embeding_layer.embed_tokens.weight"] = (vocab, hidden)
        shapes["prefix_embeding_layer.norm.weight"] = (hidden,)
    return shapes


def write_draft_model(folder: Path, target: Target, tokenizer: object, *, seed: int = 5, scale: float = 3.0) -> Path:
    """A two-layer Llama of the target's vocabulary in hub layout, with the target's tokenizer beside it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=target.vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=target.context,
        eos_token_id=target.model.config.eos_token_id,
        bos_token_id=target.model.config.bos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


def word_tokenizer(words: int) -> Any:
    """A tokenizer of this many tokens, t0, t1 and so on; t1 ends the text."""
    vocabulary = {f"t{token}": token for token in range(words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t1"
    )


def _random(shapes: Shapes, scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return {
        name: torch.ones(shape) if name.endswith("norm.weight") else torch.randn(shape, generator=generator) * scale
        for name, shape in shapes.items()
    }


def write_ranking(folder: Path, vocab: int) -> Path:
    """A ranking of half of the tokens beside a head, for ``draft_vocab``."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(2))[: vocab // 2]
    save_file({"tokens": order.int()}, folder / FILE)
    return folder


def _write(folder: Path, file: str, tensors: dict[str, torch.Tensor], config: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
