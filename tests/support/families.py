"""Tiny models of the families that the fused runtime knows, in every shape that matters, and a text read by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from methods.decode.target import Target
from methods.decode.tree import from_list
from tests.support.models import tiny_model

FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "mistral": MistralConfig}
SHAPE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

CPU = torch.device("cpu")


def build(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    return tiny_model(FAMILIES[family](**SHAPE | changes), dtype)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "as many kv heads as heads": ("llama", {"num_key_value_heads": 4}),
    "wide heads": ("mistral", {"head_dim": 16}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
}


def stirred(name: str, dtype: torch.dtype) -> Any:
    """A model of this kind whose biases and norms are not the zeros and ones they are made with."""
    family, changes = MODELS[name]
    model = build(family, dtype, **changes)
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += torch.rand(weight.shape, generator=random, dtype=torch.float64).to(dtype)
    return model


@torch.inference_mode()
def read(target: Target, text: Sequence[int] = tuple(range(20))) -> torch.Tensor:
    """Logits of a prompt, of two trees behind it, one after the other, and of a single row."""
    logits = [target.logits(target.prefill(torch.tensor(text), capacity=300))]
    for parents, path in (([-1, 0, 0, 1, 1, 2, 4], [0, 2, 5]), ([-1, 0, 0, 0, 0, 2, 4], [0, 4, 6]), ([-1], [0])):
        tree = from_list(parents, CPU)
        tokens = torch.tensor(text[7 : 7 + tree.size])
        logits.append(target.logits(target.forward(tokens, tree.depths, tree.mask)))
        target.cache.keep(path)
    return torch.cat(logits)
