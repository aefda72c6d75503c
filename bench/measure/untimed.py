"""Tokens per cycle without a clock: vanilla's text once, then every method's cycles on it.

Where the text fixes what is accepted (``methods.decode.replay``) a method runs without one forward of the target. Where
it does not, as for rejection rules at T>0 and for Lookahead, the method decodes in the ordinary loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from bench.measure import prompts
from bench.plan.cells import VANILLA, Cell, Question
from methods.base import Drafter, Request, Step
from methods.decode.loop import decode
from methods.decode.replay import replay, replayable
from methods.loading.model import Loaded

REPLAYED, DECODED = "replayed", "decoded"


@dataclass
class Counts:
    """What a method's cycles on each question add up to: ``[turns, index of the last cycle, emitted tokens, cycles]``.

    ``lane`` says how the cycles were had: ``replayed`` on vanilla's text, or ``decoded``.
    """

    questions: list[list[int]] = field(default_factory=list)
    lane: str = REPLAYED


def count(cell: Cell, drafters: Mapping[str, Drafter], loaded: Loaded) -> dict[str, Counts]:
    """The counts of every method on a cell's questions, in their order."""
    counts = {name: Counts() for name in drafters}
    for question in tqdm(cell.questions, desc=cell.name, unit="question"):
        found = {name: [0] * 4 for name in drafters}
        for request, text in _texts(cell, question, drafters[VANILLA], loaded):
            hidden = _read(loaded, request, text)
            for name, drafter in drafters.items():
                if replayable(drafter, request.sampling):
                    steps = list(replay(drafter, request, text, hidden, loaded.target.context))
                else:
                    counts[name].lane, steps = DECODED, list(decode(loaded.target, drafter, request))
                found[name] = [a + b for a, b in zip(found[name], _counted(steps), strict=True)]
        for name, row in found.items():
            counts[name].questions.append(row)
    return counts


def _texts(cell: Cell, question: Question, vanilla: Drafter, loaded: Loaded) -> list[tuple[Request, list[int]]]:
    """Vanilla's answer to each turn, which is what the next turn goes on from."""
    answers: list[str] = []
    found = []
    for _ in question.turns:
        request = prompts.request(cell, question, loaded, answers)
        text = [token for step in decode(loaded.target, vanilla, request) for token in step.tokens]
        found.append((request, text))
        answers.append(prompts.answer_text(loaded.tokenizer, text))
    return found


@torch.inference_mode()
def _read(loaded: Loaded, request: Request, text: Sequence[int]) -> torch.Tensor:
    """The target's states at every position of prompt and answer, in one forward."""
    ids = torch.tensor([*request.prompt_ids, *text], device=loaded.target.device)
    return loaded.target.prefill(ids, capacity=len(ids)).clone()


def _counted(steps: Sequence[Step]) -> list[int]:
    """One turn's; the prefill is no cycle, and its token belongs to none."""
    cycles = len(steps) - 1
    return [1, max(cycles - 1, 0), sum(len(step.tokens) for step in steps[1:]), cycles]
