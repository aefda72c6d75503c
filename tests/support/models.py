"""Tiny random models, prompts for them, and one way to run a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import strategies as st

from methods.base import Drafter, Request, Step
from methods.decode.loop import decode
from methods.decode.target import Target

VOCAB = 48
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random causal LM of this config. Weights are large, so that distributions are peaked and text wanders."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=1.0 if "embed" in name or "head" in name else 0.25)
    return model.to(dtype).eval().requires_grad_(False)


def tiny_llama(dtype: torch.dtype = torch.float64, *, layers: int = 7, seed: int = 0, **changes: Any) -> Any:
    """Grouped-query attention (4 heads, 2 key/value heads), so that a cache that mixes them up fails."""
    from transformers import LlamaConfig

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return tiny_model(LlamaConfig(**shape | changes), dtype, seed)


def run(target: Target, drafter: Drafter, request: Request) -> tuple[list[int], list[Step]]:
    """The answer of one turn and the steps that made it."""
    steps = list(decode(target, drafter, request))
    return [token for step in steps for token in step.tokens], steps


def random_prompts(
    count: int, *, lengths: Iterable[int] = range(1, 41), vocab: int = VOCAB, seed: int = 0
) -> list[tuple[int, ...]]:
    """Prompts of all these lengths in turn. Every second one repeats a short phrase, so that lookups find something."""
    random = torch.Generator().manual_seed(seed)
    cycle = list(lengths)
    prompts = []
    for index in range(count):
        length = cycle[index % len(cycle)]
        period = length if index % 2 else max(1, length // 3)
        phrase = torch.randint(vocab, (period,), generator=random).tolist()
        prompts.append(tuple((phrase * length)[:length]))
    return prompts


@st.composite
def parent_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 20) -> list[int]:
    """Any rooted tree in topological order, as parent pointers."""
    size = draw(st.integers(min_size, max_size))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]
