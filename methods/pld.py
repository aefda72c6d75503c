"""PLD, prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).

Find the last n committed tokens earlier in the text, longest n first, and draft what followed them there. No model,
no training; pays where answers repeat their prompt.

``variant=orig`` is the author's code as Spec-Bench runs it: the leftmost match that is followed by a *full* draft of
``num_draft`` tokens, so repeats among the last tokens are never used. ``variant=hf`` is transformers'
``prompt_lookup_num_tokens``: the leftmost match, whose draft may be short, cut at the first EOS.

Deviations: the reference scans the whole text on the device at every cycle and drafts token id 100 on a miss; here an
index of n-grams grows with the text (O(n) per token) and a miss is a vanilla step, which drafts nothing. At T>0 the
chain is verified by sample-and-match, as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from methods.base import Context, Draft, Outcome, Prefill, Request
from methods.common.errors import ArgumentError
from methods.common.limits import MOST_ROWS
from methods.decode.target import Target
from methods.decode.tree import chain


@dataclass(frozen=True)
class PLDConfig:
    """``variant``: orig or hf; ``max_ngram``: longest n-gram looked up; ``num_draft``: tokens drafted."""

    variant: str = "orig"
    max_ngram: int = 3
    num_draft: int = 10

    def __post_init__(self) -> None:
        if self.variant not in ("orig", "hf"):
            raise ArgumentError(f"variant={self.variant} is not known; choose orig or hf")
        if not 1 <= self.max_ngram <= MOST_ROWS or not 1 <= self.num_draft <= MOST_ROWS:
            raise ArgumentError(
                f"max_ngram={self.max_ngram} and num_draft={self.num_draft} must lie in [1, {MOST_ROWS}]"
            )


class NgramIndex:
    """Where each n-gram of a growing text first ended: ``starts[n][gram]`` is the index right after it.

    The leftmost match wins in both variants, so one position per n-gram suffices.
    """

    def __init__(self, max_ngram: int) -> None:
        self._starts: list[dict[tuple[int, ...], int]] = [{} for _ in range(max_ngram)]
        self._seen = 0

    def extend(self, ids: list[int], end: int) -> None:
        """Index the n-grams that are followed by at least one token, up to text length ``end``."""
        for stop in range(self._seen + 1, end):
            for n, starts in enumerate(self._starts, 1):
                if n <= stop:
                    starts.setdefault(tuple(ids[stop - n : stop]), stop)
        self._seen = max(self._seen, end - 1)

    def find(self, ids: list[int], n: int) -> int | None:
        return self._starts[n - 1].get(tuple(ids[-n:])) if n <= len(ids) else None


class PLD:
    """Drafts one chain, copied from earlier in the text."""

    Config = PLDConfig
    rejection = False
    path_only = True

    def __init__(self, config: PLDConfig, target: Target, tokenizer: Any = None) -> None:
        self._config = config
        self._device = target.head_device
        self.max_rows = config.num_draft + 1

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._index = NgramIndex(self._config.max_ngram)
        self._eos_ids = request.eos_ids

    def propose(self, context: Context) -> Draft:
        found = self._lookup(context.ids)
        # The last token that may still be emitted is the target's own, so one fewer is worth drafting.
        drafted = found[: context.remaining - 1]
        tokens = torch.tensor([context.ids[-1], *drafted], device=self._device)
        return Draft(tokens, chain(len(drafted), self._device))

    def observe(self, outcome: Outcome) -> None:
        pass

    def _lookup(self, ids: list[int]) -> list[int]:
        config, length = self._config, len(ids)
        # orig wants a full draft behind the match, so only n-grams that end early enough are indexed at all.
        self._index.extend(ids, length - config.num_draft + 1 if config.variant == "orig" else length)
        for n in range(min(config.max_ngram, length - 1), 0, -1):
            start = self._index.find(ids, n)
            if start is None:
                continue
            draft = ids[start : start + config.num_draft]
            if config.variant == "hf":
                return _until_eos(draft, self._eos_ids)
            if start < length - n:  # the reference's second condition; it binds only where num_draft <= n
                return draft
        return []


def _until_eos(draft: list[int], eos_ids: frozenset[int]) -> list[int]:
    for index, token in enumerate(draft):
        if token in eos_ids:
            return draft[:index]
    return draft
