"""Corpus and features as training batches: texts in a shuffled order, concatenated, cut into windows.

A batch depends on the seed and its number alone, so a run that goes on at step n sees what an unbroken run would have
seen. Texts that occur twice are used once. A fixed share of the texts, chosen by a hash of their content, is held out,
so a corpus that grows never moves a text from one part to the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.common.errors import ConfigError
from methods.train.corpus import texts_of
from methods.train.features import mapped


@dataclass(frozen=True)
class Batch:
    """``text`` numbers the text that a position belongs to: nothing is predicted across a boundary."""

    tokens: Int[Tensor, "batch window"]
    features: Float[Tensor, "batch window hidden"]
    text: Int[Tensor, "batch window"]

    def together(self, ahead: int) -> Tensor:
        """Where position i and position i + ``ahead`` are of one text: ``[batch, window - ahead]``."""
        return self.text[:, ahead:] == self.text[:, : self.text.shape[1] - ahead]


class Data:
    """The texts of a corpus, in two parts: ``trained`` and ``held_out``."""

    def __init__(self, shards: list[Path], features: list[Path], hidden: int, held_out: float) -> None:
        self.trained, self.held_out = _Part(), _Part()
        seen: set[bytes] = set()
        digest = hashlib.sha256()
        for shard, file in zip(shards, features, strict=True):
            states, start = mapped(file, hidden), 0
            for text in texts_of(shard):
                name = hashlib.sha256(str(text).encode()).digest()
                if len(text) > 1 and name not in seen:
                    seen.add(name)
                    digest.update(name)
                    part = self.held_out if int.from_bytes(name[:4]) < held_out * 2**32 else self.trained
                    part.add(torch.tensor(text), states[start : start + len(text)])
                start += len(text)
        self.sha256 = digest.hexdigest()

    def frequent(self, count: int, vocab: int) -> Int[Tensor, "count"]:
        """The most frequent tokens of the training texts, most frequent first; ties by id. 0 means all."""
        counts = torch.zeros(vocab, dtype=torch.long)
        for text in self.trained.texts:
            counts += torch.bincount(text, minlength=vocab)
        return counts.sort(descending=True, stable=True).indices[: count or vocab]


class _Part:
    def __init__(self) -> None:
        self.texts: list[Tensor] = []
        self._states: list[Tensor] = []
        self._order: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def add(self, text: Tensor, states: Tensor) -> None:
        self.texts.append(text)
        self._states.append(states)

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)

    def windows(self, window: int) -> int:
        """Whole windows in one pass."""
        return self.tokens // window

    def batch(self, number: int, *, batch: int, window: int, seed: int) -> Batch:
        """Batch ``number``, counted through all passes.

        Raises:
            ConfigError: if the texts do not fill one batch.
        """
        whole = self.windows(window) // batch
        if not whole:
            raise ConfigError(
                f"{self.tokens} tokens do not fill one batch of {batch} x {window}; raise corpus.dialogues, or lower "
                "training.batch or training.window"
            )
        epoch, place = divmod(number, whole)
        rows = [list(self._window(epoch, (place * batch + row), window, seed)) for row in range(batch)]
        return Batch(*(torch.stack([torch.cat([piece[part] for piece in row]) for row in rows]) for part in range(3)))

    def _window(self, epoch: int, place: int, window: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The pieces of texts that make up a window: tokens, features, number of the text."""
        if (epoch, seed) not in self._order:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order = torch.randperm(len(self.texts), generator=generator)
            ends = torch.tensor([len(self.texts[number]) for number in order]).cumsum(0)
            self._order = {(epoch, seed): (order, ends)}
        order, ends = self._order[epoch, seed]
        # Each pass cuts at other places, so that a window's edge falls on other tokens.
        shift = (epoch * 7919) % max(1, self.tokens - self.windows(window) * window + 1)
        at, left = place * window + shift, window
        index = int(torch.searchsorted(ends, at, right=True))
        while left:
            number = int(order[index])
            inside = at - int(ends[index]) + len(self.texts[number])
            count = min(left, len(self.texts[number]) - inside)
            piece = slice(inside, inside + count)
            text = torch.full((count,), number)
            yield self.texts[number][piece], self._states[number][piece].float(), text
            at, left, index = at + count, left - count, index + 1
