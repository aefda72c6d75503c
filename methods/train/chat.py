"""Dialogues as scripts: the tokenizer's own chat template, in which the target fills in questions and answers."""

from __future__ import annotations

import random
from typing import Any

from methods.train.settings import Kind
from methods.train.writing import Free, Given, Script

_MARKS = ("\x01first\x01", "\x01answer\x01", "\x01second\x01")


class Chat:
    """What a template puts before a question, between question and answer, and between an answer and the next question.

    A tokenizer without a template gets blank lines instead, so that a base model can be served too.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        first, answer, second = _MARKS
        if tokenizer.chat_template:
            roles = ("user", "assistant", "user")
            messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        else:
            text = f"{tokenizer.bos_token or ''}{first}\n\n{answer}\n\n{second}\n\n"
        self._before, rest = text.split(first)
        self._to_answer, rest = rest.split(answer)
        self._to_question = rest.split(second)[0]
        # An answer ends with its own end-of-text token, which the template writes again.
        self._end = tokenizer.eos_token or ""
        self._to_question = self._to_question.removeprefix(self._end)

    def prompt(self, question: str) -> tuple[int, ...]:
        """A one-turn prompt, up to where the answer begins."""
        return self._encode(self._before + question + self._to_answer)

    def script(self, kind: Kind, rng: random.Random, question_temperature: float, answer_temperature: float) -> Script:
        """One dialogue of a kind."""
        parts: list[Given | Free] = []
        for turn in range(kind.turns):
            before = self._before if turn == 0 else self._to_question
            opening = rng.choice(kind.openings) if turn == 0 else ""
            parts.append(Given(self._encode(before + opening)))
            parts.append(Free(kind.question_tokens, question_temperature, keep_end=False))
            parts.append(Given(self._encode(kind.closing + self._to_answer)))
            parts.append(Free(kind.answer_tokens, answer_temperature))
        return tuple(parts)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
