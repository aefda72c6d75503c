"""A method in a package of its own: draft the last token again and again. Right in "no no no", wrong elsewhere."""

from dataclasses import dataclass

import torch

from methods.base import Context, Draft, Outcome, Prefill, Request
from methods.common.errors import ArgumentError
from methods.decode.target import Target
from methods.decode.tree import chain


@dataclass(frozen=True)
class RepeatConfig:
    num_draft: int = 2

    def __post_init__(self) -> None:
        if self.num_draft < 1:
            raise ArgumentError("num_draft must be 1 or more")


class Repeat:
    Config = RepeatConfig
    rejection = False  # a deterministic draft: verified by sample-and-match, equal to vanilla at every temperature

    def __init__(self, config: RepeatConfig, target: Target, tokenizer: object = None) -> None:
        self._count = config.num_draft
        self._device = target.device
        self.max_rows = config.num_draft + 1

    def begin(self, request: Request, prefill: Prefill) -> None:
        pass  # nothing is remembered between cycles, so there is nothing to forget

    def propose(self, context: Context) -> Draft:
        tokens = torch.full((self.max_rows,), context.ids[-1], device=self._device)
        return Draft(tokens, chain(self._count, self._device))

    def observe(self, outcome: Outcome) -> None:
        pass
