"""The cycles of a method on a text that is known already: tokens per cycle without one forward of the target.

Under rule ``match`` the emitted tokens are the target's own, whatever was drafted, so vanilla's text says which drafted
tokens are accepted: those that the text goes on with. At T=0 that holds for every method. The text is read once for its
hidden states; then a drafter proposes, is shown the accepted rows and proposes again. A drafter may read the rows of
the accepted path and no others (``path_only``): here the others are NaN, and a draft made of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request, Sampling, Step
from methods.common.errors import NumericsError
from methods.decode.answer import Answer
from methods.decode.draws import Draws


def replayable(drafter: Drafter, sampling: Sampling) -> bool:
    """Whether vanilla's text and its hidden states are all that the drafter's cycles depend on."""
    return getattr(drafter, "path_only", False) and (sampling.greedy or not drafter.rejection)


@torch.inference_mode()
def replay(
    drafter: Drafter, request: Request, text: Sequence[int], hidden: Float[Tensor, "positions hidden"], context: int
) -> Iterator[Step]:
    """Yield the steps that ``methods.decode.loop.decode`` would, for vanilla's answer ``text`` to this request.

    Args:
        drafter: one for which ``replayable`` holds.
        request: as the answer was decoded.
        text: the answer's token ids, at least one, the end-of-text token included where it was emitted.
        hidden: the target's post-norm states at every position of prompt and answer; the last may be missing.
        context: tokens that the target takes.

    In the last step ``path`` ends with the text: what a draft would have been accepted beyond it is not known.

    Raises:
        NumericsError: if a draft was made of rows that are not on the accepted path.
    """
    length = len(request.prompt_ids)
    answer = Answer(request, context)
    draws = Draws(request.sampling.seed, request.question, request.turn, answer.limit + drafter.max_rows + 1)
    kept, finish = answer.commit(list(text[:1]))
    yield Step(kept, length, 0, finish=finish)
    if finish is None:
        drafter.begin(request, Prefill(hidden[:length], text[0]))
    while finish is None:
        root = len(answer.ids) - 1
        rest = list(text[root + 1 - length :])
        draft = drafter.propose(Context(answer.ids, answer.remaining, request.sampling, draws))
        path = _walk(_checked(draft, drafter), draft.tree.parents.tolist(), rest)
        kept, finish = answer.commit(rest[: len(path)])
        if finish is None and len(kept) == len(rest):
            raise ValueError(f"question {request.question}: the text ends before the answer does; give all of it")
        if finish is None:
            drafter.observe(_outcome(draft, path, list(kept), hidden[root : root + len(path)]))
        yield Step(kept, draft.rows, draft.tree.size - 1, tuple(path), finish)


def _checked(draft: Draft, drafter: Drafter) -> list[int]:
    """The draft's tokens on the host."""
    confidence = draft.log_confidence
    if confidence is not None and bool(confidence.isnan().any()):
        raise NumericsError(
            f"{type(drafter).__name__} drafted from rows that were not accepted; its path_only must be False"
        )
    tokens: list[int] = draft.tokens.tolist()
    return tokens


def _walk(tokens: Sequence[int], parents: Sequence[int], rest: Sequence[int]) -> list[int]:
    """The rows that the text goes on with, root first; children come behind their parent."""
    path = [0]
    for node in range(1, len(parents)):
        depth = len(path) - 1
        if depth == len(rest):
            break
        if parents[node] == path[-1] and tokens[node] == rest[depth]:
            path.append(node)
    return path


def _outcome(draft: Draft, path: list[int], tokens: list[int], states: Float[Tensor, "path hidden"]) -> Outcome:
    hidden = states.new_full((draft.rows, states.shape[1]), torch.nan)
    hidden[path] = states
    unknown = states.new_full((1, 1), torch.nan).expand(draft.logit_rows or draft.tree.size, -1)
    return Outcome(draft, path, tokens, hidden, unknown)
