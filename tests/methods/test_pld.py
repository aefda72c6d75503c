"""PLD's index against the scan that it replaces: left to right over the whole text, for every cycle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods
from methods.base import Context, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.draws import Draws
from methods.pld import PLD, PLDConfig

TARGET: Any = SimpleNamespace(head_device=torch.device("cpu"))
EOS = 3

texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8)
"""A text over four tokens, so that repeats are common, as the prompt and what each cycle added."""


def scan(ids: list[int], config: PLDConfig, *, eos: int | None = EOS) -> list[int]:
    length, k = len(ids), config.num_draft
    for n in range(config.max_ngram, 0, -1):
        for i in range(length - n):
            j = i + n
            if ids[i:j] != ids[-n:]:
                continue
            if config.variant == "orig" and j + k <= length and j < length - n:
                return ids[j : j + k]
            if config.variant == "hf" and j < min(j + k, length):
                found = ids[j : min(j + k, length)]
                return found[: found.index(eos)] if eos in found else found
    return []


def propose(drafter: PLD, ids: list[int], remaining: int = 99) -> list[int]:
    draft = drafter.propose(Context(ids, remaining, Sampling(), Draws(0, "0", 0, 1)))
    assert draft.tokens[0] == ids[-1]
    assert draft.tree.parents.tolist() == list(range(-1, draft.rows - 1))
    assert draft.rows <= drafter.max_rows
    return draft.tokens[1:].tolist()


@given(texts, st.sampled_from(["orig", "hf"]), st.integers(1, 4), st.integers(1, 5))
def test_the_index_finds_what_a_scan_of_the_growing_text_finds(
    chunks: list[list[int]], variant: str, max_ngram: int, num_draft: int
) -> None:
    config = PLDConfig(variant, max_ngram, num_draft)
    drafter = PLD(config, TARGET)
    for _ in range(2):  # the second turn must know nothing of the first
        drafter.begin(Request((), 99, frozenset({EOS})), None)
        ids: list[int] = []
        for chunk in chunks:
            ids += chunk
            assert propose(drafter, ids) == scan(ids, config)
        chunks = [[(token + 1) % 4 for token in chunk] for chunk in reversed(chunks)]


@given(texts, st.integers(1, 3), st.integers(1, 5))
def test_the_hf_variant_drafts_what_transformers_drafts(
    chunks: list[list[int]], max_ngram: int, num_draft: int
) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    ids = [token for chunk in chunks for token in chunk]
    theirs = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor([EOS]),
        num_output_tokens=num_draft,
        max_matching_ngram_size=max_ngram,
        max_length=999,
        vocab_size=4,
    )
    expected = theirs.get_candidates(torch.tensor([ids]))[0][0, len(ids) :].tolist()
    drafter = PLD(PLDConfig("hf", max_ngram, num_draft), TARGET)
    drafter.begin(Request((), 99, frozenset({EOS})), None)
    assert propose(drafter, ids) == expected


@pytest.mark.parametrize(
    ("variant", "ids", "expected"),
    [
        ("orig", [1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),  # longest n-gram first
        ("orig", [1, 7, 7, 7, 1, 8, 8, 8, 1], [7, 7, 7]),  # leftmost match wins
        ("orig", [1, 2, 1, 2], []),  # a repeat among the last tokens has no full draft behind it
        ("hf", [1, 2, 1, 2], [1, 2]),  # ... and is a short draft here
        ("hf", [1, 9, 5, 1], [9, 5, 1]),
        ("hf", [1, 9, 0, 6, 1], [9]),  # cut at the end token, which is 0 here
        ("hf", [4], []),
    ],
)
def test_worked_examples(variant: str, ids: list[int], expected: list[int]) -> None:
    drafter = PLD(PLDConfig(variant, 3, 3), TARGET)
    drafter.begin(Request((), 99, frozenset({0})), None)
    assert propose(drafter, ids) == expected


@pytest.mark.parametrize(("remaining", "drafted"), [(1, 0), (2, 1), (3, 2), (9, 3)])
def test_no_more_is_drafted_than_may_still_be_emitted(remaining: int, drafted: int) -> None:
    drafter = PLD(PLDConfig("orig", 3, 3), TARGET)
    drafter.begin(Request((), 99), None)
    assert len(propose(drafter, [1, 2, 3, 4, 1], remaining)) == drafted


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"variant": "other"}, "^variant=other is not known"),
        ({"max_ngram": 0}, "^max_ngram=0 and num_draft=10 must lie in"),
        ({"num_draft": 0}, "^max_ngram=3 and num_draft=0 must lie in"),
        ({"num_drafts": 3}, "^num_drafts is not a setting; did you mean 'num_draft'"),
        ({"num_draft": 3.0}, "^num_draft=3.0 must be of type int$"),
    ],
)
def test_bad_settings_are_refused_by_name(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        methods.configure("pld", knobs)
