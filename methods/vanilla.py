"""Vanilla autoregressive decoding: the tree that has only its root. tau is 1 by construction.

It runs in the same loop, cache, sampler and stop rule as every method, so a speedup compares methods and nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from methods.base import Context, Draft, Outcome, Prefill, Request
from methods.decode.target import Target
from methods.decode.tree import chain


@dataclass(frozen=True)
class VanillaConfig:
    """Vanilla has no knobs."""


class Vanilla:
    """Drafts nothing."""

    Config = VanillaConfig
    rejection = False
    path_only = True
    max_rows = 1

    def __init__(self, config: VanillaConfig, target: Target, tokenizer: Any = None) -> None:
        self._tree = chain(0, target.head_device)  # where the logits are: layers may lie on several GPUs
        self._device = target.head_device

    def begin(self, request: Request, prefill: Prefill) -> None:
        pass

    def propose(self, context: Context) -> Draft:
        return Draft(torch.tensor(context.ids[-1:], device=self._device), self._tree)

    def observe(self, outcome: Outcome) -> None:
        pass
