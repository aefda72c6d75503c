"""What each cycle drafted and how much of it was accepted: recorded in a second decode, apart from the clock.

Reading a tree back from the device costs syncs that the timed run must not pay. A decode repeats itself, since its
draws are keyed by position, so a second one shows what the first one did; ``records.repeats`` tells whether it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.measure import prompts
from bench.measure.recorders import TreeRecorder
from bench.plan.cells import VANILLA, Cell, Question
from bench.records.block import Block
from methods.base import Drafter, Request
from methods.decode.loop import decode
from methods.loading.model import Loaded


def record(
    cell: Cell, question: Question, name: str, drafter: Drafter, loaded: Loaded, blocks: Iterable[Block]
) -> dict[str, Any]:
    """Decode every turn of a measured question again, as it was, and write down its draft trees.

    Per step: the ``tokens`` it added and their ``text``; the ``draft`` (root first), its ``parents`` and ``scores``
    (cumulative log-probabilities below the root, null where the drafter has none), and the accepted ``path``.
    """
    ident = cell.method_ids[name]
    timed = next(block for block in blocks if block.where == (question.id, 0) and ident in block.method_ids)
    history = VANILLA if cell.measure.history == "vanilla" else ident
    answers: list[str] = []
    turns = []
    for number, answer in enumerate(timed.turns_of(history)):
        request = prompts.request(cell, question, loaded, answers)
        steps = _steps(drafter, request, loaded)
        turns.append(
            {
                "question": question.turns[number],
                "steps": steps,
                "labels": _labels(loaded.tokenizer, request.prompt_ids[-1], steps),
            }
        )
        answers.append(prompts.answer_text(loaded.tokenizer, answer.output_ids))
    return {"question_id": question.id, "method": name, "method_id": ident, "turns": turns}


def _steps(drafter: Drafter, request: Request, loaded: Loaded) -> list[dict[str, Any]]:
    watched = TreeRecorder(drafter)
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
