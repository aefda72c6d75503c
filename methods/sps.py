"""SpS, speculative sampling with a draft model (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318).

A draft model of the same vocabulary proposes a chain token by token; at T>0 each token is drawn from the draft's own
q, warped as the target is, and the chain rule keeps the target's distribution exactly. At T=0 both sides take the
argmax.

``schedule=heuristic`` is transformers 4.37's, which Spec-Bench ran: start at ``num_draft``, +2 after a cycle whose
drafts all matched, -1 otherwise, at least 1. It restarts with every turn: later versions of transformers keep it
across calls, so a question's speed depends on the one before. ``constant`` drafts ``num_draft`` tokens always.

Deviation: drafting does not stop at a drafted EOS (that would cost a device sync per token); what lies behind an
accepted EOS is cut by the loop as for every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from methods.base import Context, Draft, Networks, Outcome, Prefill, Request
from methods.common.errors import ArgumentError, ConfigError, prefixed
from methods.decode.sampling import distribution, draw
from methods.decode.target import Target
from methods.decode.topk import greedy
from methods.decode.tree import chain
from methods.heads.shared_draft import shared_draft, shares_embedding
from methods.loading.model import load_model, outline
from methods.loading.model_header import Outline
from methods.loading.sources import Source, source_of

_LONGEST = 64
"""The heuristic schedule never drafts more. The bound is only there to size the cache."""


@dataclass(frozen=True)
class SpSConfig:
    """``num_draft``: drafted tokens (gamma), at the start or always; ``weights``: the draft model."""

    num_draft: int = 5
    schedule: str = "heuristic"
    weights: Any = None

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "heuristic"):
            raise ArgumentError(f"schedule={self.schedule} is not known; choose constant or heuristic")
        if not 1 <= self.num_draft <= _LONGEST:
            raise ArgumentError(f"num_draft={self.num_draft} must lie in [1, {_LONGEST}]")


class SpS:
    """Drafts a chain with a language model of its own."""

    Config = SpSConfig
    rejection = True
    path_only = True

    def __init__(self, config: SpSConfig, target: Target, tokenizer: Any = None) -> None:
        self._config = config
        self._vocab = target.vocab
        source = source_of(config.weights, "sps")
        self.draft = shared_draft(source, target) or _own_draft(source, target, tokenizer)
        self.max_rows = (config.num_draft if config.schedule == "constant" else _LONGEST) + 1

    @staticmethod
    def check(config: SpSConfig, target: Outline) -> None:
        source = source_of(config.weights, "sps")
        if not shares_embedding(source):
            with prefixed("weights: "):
                outline(source)

    def begin(self, request: Request, prefill: Prefill) -> None:
        prompt = self._known(torch.tensor(request.prompt_ids, device=self.draft.device))
        capacity = len(request.prompt_ids) + request.max_new_tokens + self.max_rows
        self.draft.prefill(prompt, capacity=capacity)
        self._gamma = self._config.num_draft

    def propose(self, context: Context) -> Draft:
        count = min(self._gamma, context.remaining - 1)
        behind = context.ids[
            self.draft.cache.length :
        ]  # the root, and after a fully accepted cycle the token before it
        fed = torch.tensor(behind, device=self.draft.device)
        tokens, qs = [fed[-1:]], []
        for step in range(count):
            logits = self._feed(fed)
            if context.sampling.greedy:
                fed = greedy(logits)
            else:
                q = distribution(logits, context.sampling)
                position = torch.tensor([context.root_position + 1 + step], device=q.device)
                fed = draw(q, context.draws.uniform("draft", position))
                qs.append(q)
            tokens.append(fed)
        self._root_row = context.root_position
        drawn_from = torch.cat(qs) if qs else None
        return Draft(torch.cat(tokens), chain(count, self.draft.device), "chain", q=drawn_from)

    def observe(self, outcome: Outcome) -> None:
        accepted = len(outcome.path) - 1
        # The draft was fed the root and all drafted tokens but the last; rows behind the accepted ones are dropped.
        self.draft.cache.length = min(self.draft.cache.length, self._root_row + 1 + accepted)
        if self._config.schedule == "heuristic":
            grown = min(self._gamma + 2, _LONGEST) if accepted == self._gamma else self._gamma - 1
            self._gamma = max(grown, 1)

    def networks(self) -> Networks:
        return [(self.draft, "forward"), (self.draft, "logits")]

    def _known(self, tokens: Tensor) -> Tensor:
        """The target's vocabulary may be padded further than the draft's; an id beyond the draft's is read as its last
        one.
        """
        return tokens.clamp(max=self.draft.vocab - 1) if self.draft.vocab < self._vocab else tokens

    def _feed(self, tokens: Tensor) -> Tensor:
        """Run tokens into the draft's cache; the logits after the last, over the target's vocabulary."""
        tree = chain(tokens.shape[0] - 1, self.draft.device)
        hidden = self.draft.forward(self._known(tokens), tree.depths, tree.mask)
        self.draft.cache.length += tokens.shape[0]
        logits = self.draft.logits(hidden[-1:])
        short = self._vocab - logits.shape[1]  # negative if the draft is padded further: the surplus is cut
        return torch.nn.functional.pad(logits, (0, short), value=-torch.inf) if short else logits


def _own_draft(source: Source, target: Target, tokenizer: Any) -> Target:
    dtype = str(target.dtype).removeprefix("torch.")
    with prefixed("weights: "):
        loaded = load_model(source, dtype=dtype, device=str(target.head_device), runtime=target.runtime)
    _check_same_tokens(tokenizer, loaded.tokenizer, source.id)
    return loaded.target


def _check_same_tokens(ours: Any, theirs: Any, name: str) -> None:
    """Every id must mean the same string on both sides; sizes alone say little.

    Raises:
        ConfigError: naming the first id that differs.
    """
    if ours is None:
        return
    mine, other = ({token_id: token for token, token_id in each.get_vocab().items()} for each in (ours, theirs))
    for token_id in sorted(mine.keys() | other.keys()):
        if mine.get(token_id) != other.get(token_id):
            raise ConfigError(
                f"the draft {name} has another vocabulary: id {token_id} is {other.get(token_id)!r} there and "
                f"{mine.get(token_id)!r} in the target; choose a draft of the same tokenizer"
            )
