"""The families whose logits are head(last hidden state): our loop against transformers' own ``generate``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma2Config

import methods
from methods.base import Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.target import Target, context_of
from tests.support.families import FAMILIES, SHAPE, build
from tests.support.models import random_prompts, run, tiny_model

NEW_TOKENS = 24
PROMPTS = random_prompts(6, lengths=(1, 9, 23), vocab=40)
METHODS = {
    "vanilla": {},
    "pld": {"variant": "hf", "num_draft": 4},
    "lookahead": {"window": 4, "ngram": 3, "guesses": 3},
}


def generate(model: Any, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def check_equal_to_generate(model: Any) -> None:
    target = Target(model)
    drafters = {name: methods.load(name, knobs, target) for name, knobs in METHODS.items()}
    accepted = 0
    for prompt in PROMPTS:
        expected = generate(model, prompt)
        for name, drafter in drafters.items():
            tokens, steps = run(target, drafter, Request(prompt, NEW_TOKENS))
            assert tokens == expected, (name, prompt)
            accepted += sum(step.accepted for step in steps)
    assert accepted > 0


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_generates(family: str, tied: bool) -> None:
    check_equal_to_generate(build(family, tie_word_embeddings=tied))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_generates_in_float32(family: str) -> None:
    check_equal_to_generate(build(family, torch.float32))


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_text_of_every_method_is_vanillas(family: str) -> None:
    target = Target(build(family))
    drafters = [methods.load(name, knobs, target) for name, knobs in METHODS.items()]
    for prompt in PROMPTS:
        request = Request(prompt, NEW_TOKENS, sampling=Sampling(1.0, top_p=0.9))
        texts = [run(target, drafter, request)[0] for drafter in drafters]
        assert texts[1:] == texts[:1] * (len(texts) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_rounding_of_the_most_likely_token(family: str) -> None:
    # Equality is not promised here: rows verified together round otherwise than rows alone. Near-ties may flip.
    model = build(family, torch.bfloat16)
    target = Target(model)
    for name, knobs in METHODS.items():
        tokens, _ = run(target, methods.load(name, knobs, target), Request(PROMPTS[1], NEW_TOKENS))
        ids = torch.tensor([[*PROMPTS[1], *tokens]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(PROMPTS[1]) - 1 : -1].float()
        gap = logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert gap.max() <= 0.05 * logits.abs().max()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_tree_is_masked_alike_by_every_attention_that_takes_a_mask(attention: str) -> None:
    model = build("llama")
    expected = [generate(model, prompt) for prompt in PROMPTS]
    model.set_attn_implementation(attention)
    target = Target(model)
    for name, knobs in METHODS.items():
        drafter = methods.load(name, knobs, target)
        assert [run(target, drafter, Request(prompt, NEW_TOKENS))[0] for prompt in PROMPTS] == expected


def test_logits_that_are_capped_after_the_head_are_refused() -> None:
    model = tiny_model(Gemma2Config(**SHAPE | {"head_dim": 8, "final_logit_softcapping": 5.0}))
    with pytest.raises(ConfigError, match="Gemma2ForCausalLM changes its logits after the output head"):
        Target(model)


@pytest.mark.parametrize(
    ("family", "changes", "context"),
    [
        ("mistral", {"sliding_window": 32}, 32),
        ("mistral", {"sliding_window": None}, 128),
        ("mistral", {"sliding_window": 4096}, 128),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}, 128),
    ],
)
def test_a_sliding_window_ends_the_text_where_it_would_start_to_slide(
    family: str, changes: dict[str, Any], context: int
) -> None:
    model = build(family, **changes)
    target = Target(model)
    assert target.context == context
    prompt = random_prompts(1, lengths=[20], vocab=40)[0]
    tokens, steps = run(target, methods.load("pld", {"num_draft": 4}, target), Request(prompt, NEW_TOKENS))
    assert tokens == generate(model, prompt)[: len(tokens)]
    assert len(tokens) == min(NEW_TOKENS, context - 20)
    assert steps[-1].finish == ("context" if context < 44 else "length")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_generates_on_a_gpu(family: str) -> None:
    check_equal_to_generate(build(family).cuda())
    check_equal_to_generate(build(family, torch.float32).cuda())


def test_longrope_ends_the_text_where_its_frequencies_would_change() -> None:
    """Else a tree that reaches beyond turns the root's row to frequencies that vanilla does not use there."""
    long = {"rope_type": "longrope", "original_max_position_embeddings": 40}
    assert context_of(SimpleNamespace(max_position_embeddings=160, rope_parameters=long), None) == 40
