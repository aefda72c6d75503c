"""The one loop: prefill, then propose, verify, commit, observe, until a stop rule ends the turn.

Every method runs in it, vanilla included, so no method counts its own tokens, cuts its own text or has its own rule for
the cache. At the start of a cycle the newest committed token (the root) is not yet in the target's cache. ``decode`` is
a generator, so its caller owns the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import torch

from methods.base import Context, Drafter, Outcome, Prefill, Request, Step
from methods.common.errors import ConfigError
from methods.decode.answer import Answer
from methods.decode.draws import Draws
from methods.decode.sampling import check_finite, target_tokens
from methods.decode.target import Target
from methods.decode.verify import accept

Phase = Literal["prefill", "draft", "verify", "accept", "commit"]


class Probe(Protocol):
    """Told when each phase ends. The loop itself reads no clock."""

    def __call__(self, phase: Phase, /) -> None: ...


def _no_probe(phase: Phase) -> None:
    pass


def check_fits(target: Target, request: Request) -> None:
    """Refuse a prompt that leaves no room for one token.

    Raises:
        ConfigError: saying how long the prompt is and what the model takes.
    """
    length = len(request.prompt_ids)
    if not 1 <= length < target.context:
        raise ConfigError(
            f"question {request.question} turn {request.turn}: a prompt of {length} tokens does not fit a context of "
            f"{target.context}; shorten it, or leave the question out"
        )


@torch.inference_mode()
def decode(target: Target, drafter: Drafter, request: Request, probe: Probe = _no_probe) -> Iterator[Step]:
    """Decode one turn, yielding a ``Step`` per target forward; the last one says why it ended.

    Raises:
        ConfigError: if the prompt does not fit the context.
        NumericsError: if the target's logits are not finite at the end of the prompt.
    """
    check_fits(target, request)
    answer = Answer(request, target.context)
    ids, limit = answer.ids, answer.limit
    rows = drafter.max_rows
    draws = Draws(request.sampling.seed, request.question, request.turn, limit + rows + 1)

    prompt = torch.tensor(ids, device=target.device)
    hidden = target.prefill(prompt, capacity=limit + rows)
    logits = target.logits(hidden[-1:])
    check_finite(logits, f"after the prompt of question {request.question}")
    root = int(target_tokens(logits, request.sampling, draws, range(len(ids), len(ids) + 1)))
    probe("prefill")

    kept, finish = answer.commit([root])
    yield Step(kept, len(prompt), 0, finish=finish)
    if finish is None:
        drafter.begin(request, Prefill(hidden, root))
    del hidden

    while finish is None:
        context = Context(ids, answer.remaining, request.sampling, draws)
        draft = drafter.propose(context)
        probe("draft")
        tree = draft.tree
        offsets = tree.depths if draft.offsets is None else draft.offsets
        mask = tree.mask if draft.mask is None else draft.mask
        hidden = target.forward(draft.tokens, offsets, mask)
        logits = target.logits(hidden[: draft.logit_rows or tree.size])
        probe("verify")
        path, tokens = accept(draft, logits, context)
        probe("accept")
        target.cache.keep(path)
        kept, finish = answer.commit(tokens)
        if finish is None:
            drafter.observe(Outcome(draft, path, tokens, hidden, logits))
        probe("commit")
        yield Step(kept, draft.rows, tree.size - 1, tuple(path), finish)
