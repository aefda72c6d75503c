"""The paper's chat formats: their very text in one turn and in two, and token ids by a tokenizer of each family."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bench.measure.prompts import render
from bench.plan.templates import LLAMA_SYSTEM, TEMPLATES, VICUNA_SYSTEM
from methods.common.errors import ConfigError

QUESTIONS = ["What is 2+2?", " And 3+3? "]
ANSWER = "Four."

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)
LLAMA = (
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, while being safe.  "
    "Your answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, or illegal content. "
    "Please ensure that your responses are socially unbiased and positive in nature.\n"
    "\n"
    "If a question does not make any sense, or is not factually coherent, explain why instead of answering something "
    "not correct. If you don't know the answer to a question, please don't share false information."
)
TEXTS = {
    "vicuna": (
        f"{VICUNA} USER: What is 2+2? ASSISTANT:",
        f"{VICUNA} USER: What is 2+2? ASSISTANT: Four.</s>USER:  And 3+3?  ASSISTANT:",
    ),
    "llama2": (
        f"[INST] <<SYS>>\n{LLAMA}\n<</SYS>>\n\nWhat is 2+2? [/INST] ",
        f"[INST] <<SYS>>\n{LLAMA}\n<</SYS>>\n\nWhat is 2+2? [/INST] Four. </s><s>[INST]  And 3+3?  [/INST] ",
    ),
    "llama3": (
        f"<|start_header_id|>system<|end_header_id|>\n\n{LLAMA}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"<|start_header_id|>system<|end_header_id|>\n\n{LLAMA}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nFour.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd 3+3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}


def test_the_system_prompts_are_the_published_ones() -> None:
    assert (VICUNA_SYSTEM, LLAMA_SYSTEM) == (VICUNA, LLAMA)


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_turn_and_two_are_the_published_text(name: str) -> None:
    assert TEMPLATES[name](QUESTIONS[:1], []) == TEXTS[name][0]
    assert TEMPLATES[name](QUESTIONS, [ANSWER]) == TEXTS[name][1]


def sentencepiece_like() -> Any:
    """Llama's and LLaMA2's kind: blanks are ▁, one goes before the text, and its post-processor adds BOS. No merges."""
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special, "▁", *string.printable])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def byte_level() -> Any:
    """LLaMA3's kind: a token a byte, headers and BOS as single tokens, a post-processor that adds BOS. No merges."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    alphabet = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1])


FAMILIES = {"vicuna": sentencepiece_like, "llama2": sentencepiece_like, "llama3": byte_level}


def spelled(text: str) -> list[str]:
    """The tokens of a text between special ones, as Llama's family writes them."""
    return list("▁" + text.replace(" ", "▁"))


def test_vicuna_s_ids_start_with_one_bos_and_close_an_answer_with_eos() -> None:
    tokenizer = sentencepiece_like()
    before, after = TEXTS["vicuna"][1].split("</s>")
    ids = render(tokenizer, "vicuna", QUESTIONS, [ANSWER])
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *spelled(before), "</s>", *spelled(after)]
    assert render(tokenizer, "vicuna", QUESTIONS, []) == (1, *ids[1 : 1 + len(spelled(TEXTS["vicuna"][0]))])


def test_llama2_s_ids_end_in_a_blank_and_every_turn_has_its_own_bos() -> None:
    tokenizer = sentencepiece_like()
    before, after = TEXTS["llama2"][1].split("</s><s>")
    tokens = tokenizer.convert_ids_to_tokens(render(tokenizer, "llama2", QUESTIONS, [ANSWER]))
    assert tokens == ["<s>", *spelled(before), "</s>", "<s>", *spelled(after)]
    assert tokens[-2:] == ["]", "▁"]


@pytest.mark.parametrize("turn", [0, 1])
def test_llama3_s_ids_have_one_bos_and_its_marks_are_single_tokens(turn: int) -> None:
    tokenizer = byte_level()
    ids = render(tokenizer, "llama3", QUESTIONS, [ANSWER][:turn])
    assert ids.count(0) == 1
    assert ids[0] == 0
    marks = [
        tokenizer.convert_tokens_to_ids(mark) for mark in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    ]
    assert [ids.count(mark) for mark in marks] == [3 + 2 * turn, 3 + 2 * turn, 2 + 2 * turn]
    assert tokenizer.decode(ids) == "<|begin_of_text|>" + TEXTS["llama3"][turn]
    assert len(ids) == 1 + len(re.findall(r"<\|\w+\|>|.", TEXTS["llama3"][turn], re.DOTALL)), "else a byte each"


@pytest.mark.parametrize("name", FAMILIES)
def test_bos_does_not_depend_on_what_the_tokenizer_adds(name: str) -> None:
    tokenizer, bare = FAMILIES[name](), FAMILIES[name]()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    assert render(tokenizer, name, QUESTIONS, [ANSWER]) == render(bare, name, QUESTIONS, [ANSWER])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tokenizer_without_bos_is_refused(name: str) -> None:
    tokenizer = FAMILIES[name]()
    tokenizer.bos_token = None
    with pytest.raises(ConfigError, match=f"template={name} starts with BOS, but this tokenizer names none"):
        render(tokenizer, name, QUESTIONS, [])
