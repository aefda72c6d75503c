"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): Jacobi iterations fill a pool of n-grams to guess from.

Every forward carries a window of N-1 levels and W columns. Level l, column j guesses the token l+j places after the
root; the argmax at the newest level extends every column by one token, and each full column is an n-gram for the
pool. The pool's n-grams that begin with the root are the draft, verified in the same forward.

The window is a grid whose cell (0, 0) is the root. Cell (l, j) sees (0, j') for j' <= j, and (l', j) for l' <= l, so a
column reads like text.

Deviations: guesses with a common prefix share rows (a trie), so a cycle may run fewer rows than W(N-1) + G(N-1).
``parity_cap`` restores the reference's off-by-one (hao-ai-lab/LookaheadDecoding): its greedy path never accepts the
last token of an n-gram, so at most N-1 tokens a cycle. Random initial tokens come from the turn's keyed draws, not
from a global seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from methods.base import Context, Draft, Outcome, Prefill, Request
from methods.common.errors import ArgumentError
from methods.common.limits import MOST_ROWS
from methods.decode.target import Target
from methods.decode.topk import greedy
from methods.decode.tree import Tree, from_list


@dataclass(frozen=True)
class LookaheadConfig:
    """``window`` W columns, ``ngram`` N tokens per n-gram, ``guesses`` G n-grams kept per first token."""

    window: int = 7
    ngram: int = 5
    guesses: int = 7
    parity_cap: bool = False

    def __post_init__(self) -> None:
        if self.window < 1 or self.ngram < 2 or self.guesses < 1:
            raise ArgumentError("window, ngram and guesses must be at least 1, 2 and 1")
        if (self.window + self.guesses) * self.ngram > MOST_ROWS:
            raise ArgumentError(
                f"window={self.window}, ngram={self.ngram} and guesses={self.guesses} ask for more than {MOST_ROWS} "
                "rows; lower them"
            )


class NgramPool:
    """n-grams by first token, at most ``size`` each; the least recently found is dropped first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ngrams: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, key: int, rest: tuple[int, ...]) -> None:
        known = self._ngrams.setdefault(key, {})
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self._size:
            del known[next(iter(known))]

    def get(self, key: int) -> list[tuple[int, ...]]:
        return list(self._ngrams.get(key, ()))


class Lookahead:
    """Drafts a trie of pooled n-grams; the window's rows are in the same forward and are never accepted."""

    Config = LookaheadConfig
    rejection = False

    def __init__(self, config: LookaheadConfig, target: Target, tokenizer: Any = None) -> None:
        self._config = config
        self._device = target.head_device
        widest = max(level * (config.window + config.ngram - 1 - level) for level in range(1, config.ngram))
        self.max_rows = widest + config.guesses * (config.ngram - 1) + 1

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._pool = NgramPool(self._config.guesses)
        self._prompt = request.prompt_ids
        self._grid: list[list[int]] = []

    def propose(self, context: Context) -> Draft:
        root = context.ids[-1]
        if not self._grid:
            self._grid = [self._random_row(context)]
        self._grid[0][0] = root
        longest = min(self._config.ngram - 1 - self._config.parity_cap, context.remaining - 1)
        guesses = [guess[:longest] for guess in self._pool.get(root)] if self._full else []
        parents, guessed = _trie(guesses)
        levels, columns = len(self._grid), len(self._grid[0])
        cells, tree, mask, offsets = _layout(tuple(parents), levels, columns, self._device)
        tokens = [root, *guessed, *(self._grid[level][column] for level, column in cells)]
        return Draft(
            torch.tensor(tokens, device=self._device),
            tree,
            mask=mask,
            offsets=offsets,
            logit_rows=tree.size + columns - (levels == 1),
        )

    def observe(self, outcome: Outcome) -> None:
        grid, nodes = self._grid, outcome.draft.tree.size
        newest = greedy(outcome.logits[nodes:]).tolist()
        if len(grid) == 1:  # the newest level is the root's own
            newest = [int(greedy(outcome.logits[0])), *newest]
        if not self._full:
            self._grid = [row[1:] for row in [*grid, newest]]
            return
        for key, *rest in zip(*grid, newest, strict=True):
            self._pool.add(key, tuple(rest))
        self._grid = [*(row[:] for row in grid[1:]), newest]

    @property
    def _full(self) -> bool:
        return len(self._grid) == self._config.ngram - 1

    def _random_row(self, context: Context) -> list[int]:
        """Level 0 before the first fill step: tokens of the prompt, uniformly (cell 0 is the root's place)."""
        count = self._config.window + self._config.ngram - 2
        uniforms = context.draws.uniform("window", torch.arange(count)).tolist()
        return [self._prompt[int(u * len(self._prompt))] for u in uniforms]


@lru_cache(maxsize=256)
def _layout(
    parents: tuple[int, ...], levels: int, columns: int, device: torch.device
) -> tuple[list[tuple[int, int]], Tree, Bool[Tensor, "rows rows"], Tensor]:
    """The window's cells; the guesses' tree; mask and offsets of both. Cached, since most shapes recur."""
    tree = from_list(parents, device)
    cells, window_mask, offsets = _window(levels, columns, device)
    rows = tree.size + len(cells)
    mask = torch.zeros(rows, rows, dtype=torch.bool, device=device)
    mask[: tree.size, : tree.size] = tree.mask
    mask[tree.size :, tree.size :] = window_mask
    mask[:, 0] = True
    return cells, tree, mask, torch.cat([tree.depths, offsets])


@lru_cache(maxsize=64)
def _window(
    levels: int, columns: int, device: torch.device
) -> tuple[list[tuple[int, int]], Bool[Tensor, "cells cells"], Tensor]:
    """The window's cells without the root, the newest level first (its logits are needed), their mask and offsets."""
    order = [levels - 1, *range(levels - 1)]
    cells = [(level, column) for level in order for column in range(columns) if level or column]
    mask = [[(k == 0 and i <= j) or (i == j and 1 <= k <= level) for k, i in cells] for level, j in cells]
    offsets = torch.tensor([level + column for level, column in cells], dtype=torch.long, device=device)
    return cells, torch.tensor(mask, dtype=torch.bool, device=device).view(len(cells), len(cells)), offsets


def _trie(guesses: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Parent pointers (root first) and tokens (root left out) of the trie of the guesses."""
    index: dict[tuple[int, ...], int] = {(): 0}
    parents, tokens = [-1], []
    for guess in guesses:
        for depth in range(1, len(guess) + 1):
            path = guess[:depth]
            if path not in index:
                index[path] = len(parents)
                parents.append(index[path[:-1]])
                tokens.append(path[-1])
    return parents, tokens
