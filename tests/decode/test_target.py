"""The target's one forward: a tree in one pass says what each of its paths says alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, NumericsError
from methods.decode.target import Target
from methods.decode.tree import from_list
from tests.support.models import VOCAB, parent_lists, tiny_llama

CPU = torch.device("cpu")


@settings(max_examples=30)
@given(parent_lists(max_size=10), st.integers(1, 30), st.integers(0, 999))
def test_item_4_a_tree_forward_equals_one_plain_forward_per_path(
    target: Target, parents: list[int], past: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    prompt = torch.randint(VOCAB, (past,), generator=random)
    tokens = torch.randint(VOCAB, (len(parents),), generator=random)
    tree = from_list(parents, CPU)
    target.prefill(prompt, capacity=past + tree.size)
    hidden = target.forward(tokens, tree.depths, tree.mask)
    logits = target.logits(hidden)
    for node in range(tree.size):
        line = [node]
        while parents[line[0]] >= 0:
            line.insert(0, parents[line[0]])
        alone = target.model(input_ids=torch.cat([prompt, tokens[line]])[None], use_cache=False).logits[0, -1]
        assert (logits[node] - alone).abs().max() < 1e-9


def test_prefill_returns_what_the_output_head_reads(target: Target) -> None:
    prompt = torch.arange(9)
    logits = target.logits(target.prefill(prompt, capacity=9))
    expected = target.model(input_ids=prompt[None], use_cache=False).logits[0]
    assert (logits - expected).abs().max() < 1e-9
    assert target.cache.length == 9


def test_a_forward_leaves_the_length_to_keep(target: Target) -> None:
    target.prefill(torch.arange(4), capacity=8)
    tree = from_list([-1, 0, 0], CPU)
    target.forward(torch.tensor([1, 2, 3]), tree.depths, tree.mask)
    assert target.cache.length == 4


def test_positions_past_the_context_are_clamped_and_disturb_no_other_row(llama: Any) -> None:
    target = Target(llama, context=8)
    tree = from_list([-1, 0, 1, 2], CPU)
    tokens = torch.tensor([5, 6, 7, 8])
    results = []
    for model in (target, Target(llama)):
        model.prefill(torch.arange(6), capacity=10)
        results.append(model.forward(tokens, tree.depths, tree.mask))
    assert torch.equal(results[0][:2], results[1][:2])  # positions 6 and 7 exist; 8 and 9 do not
    assert results[0].isfinite().all()


@pytest.mark.parametrize("context", [0, 1, 257])
def test_a_context_the_model_was_not_made_for_is_refused(llama: Any, context: int) -> None:
    with pytest.raises(ConfigError, match=r"^context=.* must lie in \[2, 256\]"):
        Target(llama, context=context)


def test_the_embedding_says_where_and_in_what_type_the_target_runs(target: Target) -> None:
    assert target.embedding.shape == (VOCAB, 32)
    assert (target.vocab, target.hidden, target.context) == (VOCAB, 32, 256)
    assert (target.dtype, target.device) == (torch.float64, CPU)


def test_a_model_that_changes_its_logits_after_the_head_is_refused() -> None:
    model = tiny_llama(layers=1)
    model.register_forward_hook(lambda module, inputs, output: replace(output, logits=output.logits / 2))
    with pytest.raises(ConfigError, match="LlamaForCausalLM changes its logits"):
        Target(model)


def test_weights_that_are_not_numbers_are_refused_in_words() -> None:
    model = tiny_llama(layers=1)
    model.lm_head.weight[3] = math.nan
    with pytest.raises((ConfigError, NumericsError)):
        Target(model)
