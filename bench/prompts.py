"""Questions and answers so far -> prompt token ids, by a named template; and the request that decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.plan import Cell, Question
from methods.base import Request, Sampling
from methods.errors import ConfigError

if TYPE_CHECKING:
    from methods.loading import Loaded

TEMPLATES = ("tokenizer",)


def render(tokenizer: Any, template: str, questions: Sequence[str], answers: Sequence[str]) -> tuple[int, ...]:
    """The prompt of turn ``len(answers)``: every question up to it, the answers before it, the answer opened.

    Raises:
        ConfigError: for an unknown template, a tokenizer without one, or a prompt that starts with two BOS tokens
            (a template that writes BOS and a tokenizer that adds another: drafts get worse and nothing else shows).
    """
    if template not in TEMPLATES:
        raise ConfigError(f"model.template={template} is not known; choose {', '.join(TEMPLATES)}")
    if not tokenizer.chat_template:
        raise ConfigError("model.template=tokenizer, but this tokenizer brings no chat template")
    messages = []
    for turn, question in enumerate(questions[: len(answers) + 1]):
        messages.append({"role": "user", "content": question})
        if turn < len(answers):
            messages.append({"role": "assistant", "content": answers[turn]})
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    ids = tuple(int(token) for token in encoded["input_ids"])
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == (bos, bos):
        raise ConfigError(f"model.template={template} gives a prompt with two BOS tokens (id {bos})")
    return ids


def answer_text(tokenizer: Any, output_ids: Sequence[int]) -> str:
    """An answer as it enters the next turn: special tokens and outer white space removed."""
    return str(tokenizer.decode(list(output_ids), skip_special_tokens=True)).strip()


def sampling(cell: Cell) -> Sampling:
    """How the cell's target chooses its tokens."""
    decode = cell.decode
    return Sampling(decode.temperature, decode.top_p, decode.top_k, decode.seed)


def request(cell: Cell, question: Question, loaded: Loaded, answers: Sequence[str], repeat: int = 0) -> Request:
    """Turn ``len(answers)`` of a question. A repeat is a new sample at T>0: its number enters the key of the draws."""
    ids = render(loaded.tokenizer, cell.model.template, question.turns, answers)
    key = f"{question.id}#{repeat}" if repeat else question.id
    return Request(ids, cell.decode.max_new_tokens, loaded.eos_ids, sampling(cell), key, len(answers))
