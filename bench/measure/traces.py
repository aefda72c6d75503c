"""What each cycle drafted and how much of it was accepted: recorded in a second decode, apart from the clock.

Reading a tree back from the device costs syncs that the timed run must not pay. A decode repeats itself, since its
draws are keyed by position, so a second one shows what the first one did; ``records.repeats`` tells whether it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bench.measure import prompts
from bench.plan.cells import VANILLA, Cell, Question
from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request
from methods.decode.loop import decode
from methods.loading.model import Loaded


def record(
    cell: Cell, question: Question, name: str, drafter: Drafter, loaded: Loaded, blocks: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Decode every turn of a measured question again, as it was, and write down its draft trees.

    Per step: the ``tokens`` it added and their ``text``; the ``draft`` (root first), its ``parents`` and ``scores``
    (cumulative log-probabilities below the root, null where the drafter has none), and the accepted ``path``.
    """
    ident = cell.method_ids[name]
    timed = next(runs for block in blocks if block["question_id"] == question.id and ident in (runs := _runs(block)))
    history = VANILLA if cell.measure.history == "vanilla" else ident
    answers: list[str] = []
    turns = []
    for number in range(len(timed[ident])):
        request = prompts.request(cell, question, loaded, answers)
        steps = _steps(drafter, request, loaded)
        turns.append(
            {
                "question": question.turns[number],
                "steps": steps,
                "labels": _labels(loaded.tokenizer, request.prompt_ids[-1], steps),
            }
        )
        answers.append(prompts.answer_text(loaded.tokenizer, timed[history][number]["output_ids"]))
    return {"question_id": question.id, "method": name, "method_id": ident, "turns": turns}


class _Watched:
    """A drafter that keeps a copy of each draft on the host."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.max_rows, self.rejection = drafter.max_rows, drafter.rejection
        self.drafts: list[dict[str, Any]] = []

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._drafter.begin(request, prefill)

    def propose(self, context: Context) -> Draft:
        draft = self._drafter.propose(context)
        scores = _cumulative(draft)
        self.drafts.append(
            {
                "draft": draft.tokens[: draft.tree.size].tolist(),
                "parents": draft.tree.parents.tolist(),
                # JSON has no -inf, the logarithm of a probability that underflowed.
                "scores": scores and [score if math.isfinite(score) else None for score in scores],
            }
        )
        return draft

    def observe(self, outcome: Outcome) -> None:
        self._drafter.observe(outcome)


def _runs(block: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The turns of each method of a block's first repeat."""
    return {} if block["repeat"] else {run["method_id"]: run["turns"] for run in block["runs"]}


def _steps(drafter: Drafter, request: Request, loaded: Loaded) -> list[dict[str, Any]]:
    watched = _Watched(drafter)
    steps: list[dict[str, Any]] = []
    ids: list[int] = []
    shown = ""
    for step in decode(loaded.target, watched, request):
        drafted = watched.drafts[-1] if steps else {"draft": [], "parents": [], "scores": None}
        ids += step.tokens
        text = _text(loaded.tokenizer, ids)
        if step.finish is None:
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # a character whose bytes are not all here yet
        path = list(step.path) if steps else []
        steps.append({"tokens": list(step.tokens), "text": text[len(shown) :], **drafted, "path": path})
        shown = text
    return steps


def _labels(tokenizer: Any, before: int, steps: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Each token's text after another token: at the start of a text, some tokenizers drop its space."""
    context = len(_text(tokenizer, [before]))
    tokens = sorted({token for step in steps for token in [*step["draft"], *step["tokens"]]})
    return {str(token): _text(tokenizer, [before, token])[context:] for token in tokens}


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _cumulative(draft: Draft) -> list[float] | None:
    """Each drafted node's log-probability given the root: the sum of the confidences on its path."""
    if draft.log_confidence is None:
        return None
    scores = [0.0]
    for parent, confidence in zip(draft.tree.parents[1:].tolist(), draft.log_confidence.tolist(), strict=True):
        scores.append(scores[parent] + confidence)
    return scores[1:]
