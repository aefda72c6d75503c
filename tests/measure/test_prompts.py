"""Prompts: the template's very text in one turn and in two, and the mistakes that would only make drafts worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.measure.prompts import answer_text, render
from methods.common.errors import ConfigError

ONE_TURN = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
TWO_TURNS = (
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
    "<|im_start|>assistant\nFour, naïvely.<|im_end|>\n"
    "<|im_start|>user\nAnd 3+3?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
QUESTIONS = ["What is 2+2?", "And 3+3?"]


@pytest.fixture
def tokenizer(tiny_model_folder: Path) -> Any:
    """The tiny model's: one token a byte, ChatML. Fresh for each test, since some change it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_folder)


def test_the_first_turn_asks_the_first_question_only(tokenizer: Any) -> None:
    ids = render(tokenizer, "tokenizer", QUESTIONS, [])
    assert tokenizer.decode(ids) == ONE_TURN
    assert ids == tuple(tokenizer(ONE_TURN, add_special_tokens=False)["input_ids"])
    assert all(type(token) is int for token in ids)


def test_the_second_turn_carries_the_first_answer(tokenizer: Any) -> None:
    ids = render(tokenizer, "tokenizer", QUESTIONS, ["Four, naïvely."])
    assert tokenizer.decode(ids) == TWO_TURNS
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert (ids.count(start), ids.count(end)) == (4, 3), "markers are single tokens, not their letters"


def test_text_is_taken_as_it_is(tokenizer: Any) -> None:
    text = "  keep {{ this }} and {that}\n\n\tÜ ½ 😀 "
    expected = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(render(tokenizer, "tokenizer", [text], [])) == expected


def test_two_bos_tokens_are_refused_and_one_is_not(tokenizer: Any) -> None:
    chatml = tokenizer.chat_template
    tokenizer.chat_template = "{{ bos_token }}" + chatml
    ids = render(tokenizer, "tokenizer", QUESTIONS, [])
    assert tokenizer.decode(ids) == "<|endoftext|>" + ONE_TURN
    tokenizer.chat_template = "{{ bos_token }}{{ bos_token }}" + chatml
    with pytest.raises(ConfigError, match=rf"two BOS tokens \(id {tokenizer.bos_token_id}\)"):
        render(tokenizer, "tokenizer", QUESTIONS, [])


def test_a_tokenizer_without_bos_or_without_template(tokenizer: Any) -> None:
    tokenizer.bos_token = None
    assert tokenizer.decode(render(tokenizer, "tokenizer", QUESTIONS, [])) == ONE_TURN
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="this tokenizer brings no chat template"):
        render(tokenizer, "tokenizer", QUESTIONS, [])


def test_an_unknown_template_is_refused_with_the_known_ones(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.template=vicunna is not known; .*tokenizer"):
        render(tokenizer, "vicunna", QUESTIONS, [])


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("Four.<|im_end|>", "Four."),
        ("\n Four,\n  naïvely. \n<|im_end|>", "Four,\n  naïvely."),
        ("<|endoftext|>Four<|im_start|> .", "Four ."),
        ("<|im_end|>", ""),
        ("Four", "Four"),
    ],
)
def test_an_answer_enters_the_next_turn_without_special_tokens_and_outer_space(
    output: str, text: str, tokenizer: Any
) -> None:
    ids = tokenizer(output, add_special_tokens=False)["input_ids"]
    assert answer_text(tokenizer, ids) == answer_text(tokenizer, tuple(ids)) == text
