"""Drafters that no method would be: they know the answer, or lie about it on purpose."""

from __future__ import annotations

import random

import torch

from methods.base import Context, Draft, Outcome, Prefill, Request
from methods.decode.tree import chain, from_list
from tests.support.models import VOCAB

CPU = torch.device("cpu")


class Knows:
    """Drafts a chain of the next tokens of a known answer, each ``shift`` ids off: 0 is always right, 1 never."""

    rejection = False

    def __init__(self, answer: list[int], depth: int, shift: int = 0) -> None:
        self._answer, self._depth, self._shift = answer, depth, shift
        self.max_rows = depth + 1
        self.observed: list[Outcome] = []

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._prompt = len(request.prompt_ids)

    def propose(self, context: Context) -> Draft:
        done = len(context.ids) - self._prompt
        drafted = [(token + self._shift) % VOCAB for token in self._answer[done : done + self._depth]]
        return Draft(torch.tensor([context.ids[-1], *drafted]), chain(len(drafted), CPU))

    def observe(self, outcome: Outcome) -> None:
        self.observed.append(outcome)


class Bushes:
    """Random trees with repeated siblings, in which a known answer hides at scattered rows, up to a random depth."""

    rejection = False
    max_rows = 14

    def __init__(self, answer: list[int], seed: int) -> None:
        self._answer, self._seed = answer, seed

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._prompt = len(request.prompt_ids)
        self._random = random.Random(self._seed)

    def propose(self, context: Context) -> Draft:
        size = self._random.randint(1, self.max_rows)
        # Parents among the last few nodes make deep trees, so that long paths of rows far apart are accepted.
        parents = [-1, *(self._random.randint(max(0, node - 4), node - 1) for node in range(1, size))]
        tokens = [context.ids[-1], *(self._random.randrange(VOCAB) for _ in range(1, size))]
        line = [size - 1]
        while line[0] > 0:
            line.insert(0, parents[line[0]])
        done = len(context.ids) - self._prompt
        known = self._answer[done : done + self._random.randint(0, len(line))]
        for node, token in zip(line[1:], known, strict=False):
            tokens[node] = token
        return Draft(torch.tensor(tokens), from_list(parents, CPU))

    def observe(self, outcome: Outcome) -> None:
        pass
