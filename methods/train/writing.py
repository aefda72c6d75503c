"""The target writes many texts at once: every text is a script of parts that are given and parts that it fills in.

All texts of a batch have one length at any time, so there is no padding and no mask: a text that is still inside a
given part is fed its next token while its neighbours draw theirs. Finished texts leave the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Sampling
from methods.decode.sampling import distribution, draw
from methods.decode.target import Target
from methods.decode.topk import greedy


@dataclass(frozen=True)
class Given:
    """Tokens that stand in the text as they are."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Free:
    """Up to ``limit`` tokens of the target's own, ended early by an end-of-text token.

    ``keep_end``: whether that token stays (the end of an answer) or a given part takes its place (of a question).
    """

    limit: int
    temperature: float
    keep_end: bool = True


Script = tuple[Given | Free, ...]
"""Starts with a given part; a free part follows a given one."""


_COMPACT = 0.75
"""Finished texts stay in the batch until this share of it is unfinished: dropping them copies the whole cache."""


class _Text:
    """One text in the making: its tokens, and where in its script it stands."""

    def __init__(self, script: Script, eos_ids: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.done = False
        self.temperature = 0.0
        self._eos_ids = eos_ids
        self._parts = iter(script)
        self._queue: list[int] = []
        self._advance()

    def waiting(self) -> int:
        """How many given tokens come next; 0 where the target is to write."""
        return len(self._queue)

    def take(self, count: int) -> list[int]:
        """The next ``count`` given tokens, appended."""
        for _ in range(count):
            self.push(None)
        return self.tokens[-count:]

    def push(self, token: int | None) -> None:
        """Append one token: the next given one, or the target's."""
        if self._queue:
            self.tokens.append(self._queue.pop(0))
            if not self._queue:
                self._advance()
            return
        assert token is not None
        ended = token in self._eos_ids
        self._left -= 1
        if not ended or self._keep_end:
            self.tokens.append(token)
        if ended or not self._left:
            self._advance()
        if ended and not self._keep_end and not self.done:
            self.push(None)  # the part that follows takes the place of the end-of-text token

    def _advance(self) -> None:
        part = next(self._parts, None)
        if part is None:
            self.done = True
        elif isinstance(part, Given):
            self._queue = list(part.tokens)
        else:
            self.temperature, self._left, self._keep_end = part.temperature, part.limit, part.keep_end


def write(
    target: Target, scripts: Sequence[Script], eos_ids: frozenset[int], generator: torch.Generator
) -> Iterator[list[int]]:
    """Fill in scripts in one batch; each text is yielded when it is done, so in no fixed order.

    ``generator`` supplies the uniforms of every T>0 draw: the same seed, scripts and kernels give the same texts.
    """
    texts = [_Text(script, eos_ids) for script in scripts]
    target.begin_batch(max(map(_longest, scripts)))
    opening = min(text.waiting() for text in texts)
    fed = torch.tensor([text.take(opening) for text in texts])
    while True:
        hidden = target.read_batch(fed)[:, -1]
        asked = [row for row, text in enumerate(texts) if not text.done and not text.waiting()]
        temperatures = torch.tensor([texts[row].temperature for row in asked])
        chosen = dict(zip(asked, _choose(target, hidden[asked], temperatures, generator), strict=True)) if asked else {}
        for row, text in enumerate(texts):
            if not text.done:
                text.push(chosen.get(row))
                if text.done:
                    yield text.tokens
        staying = [row for row, text in enumerate(texts) if not text.done]
        if not staying:
            return
        if len(staying) <= _COMPACT * len(texts):
            texts = [texts[row] for row in staying]
            target.cache.select(torch.tensor(staying))
        fed = torch.tensor([text.tokens[-1:] for text in texts])


def _choose(target: Target, hidden: Tensor, temperatures: Tensor, generator: torch.Generator) -> list[int]:
    """The target's own token after each row of ``hidden``, at that row's temperature."""
    logits = target.logits(hidden)
    tokens = greedy(logits)
    for temperature in sorted(set(temperatures.tolist()) - {0.0}):
        drawn = (temperatures == temperature).nonzero()[:, 0]
        uniform = torch.rand(len(drawn), dtype=torch.float64, generator=generator)
        probs = distribution(logits[drawn.to(logits.device)], Sampling(temperature))
        tokens[drawn.to(logits.device)] = draw(probs, uniform.to(logits.device))
    chosen: list[int] = tokens.tolist()
    return chosen


def _longest(script: Script) -> int:
    return sum(len(part.tokens) if isinstance(part, Given) else part.limit for part in script)
