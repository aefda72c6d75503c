"""Replay against the ordinary loop: the same steps from vanilla's text alone, for every method that allows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import methods
from methods.base import Draft, Drafter, Outcome, Request, Sampling, Step
from methods.common.errors import NumericsError
from methods.decode.replay import replay, replayable
from methods.decode.target import Target
from methods.eagle2 import Eagle2
from tests.support.matrix import EOS, MATRIX_VOCAB, NEW_TOKENS, SETTINGS, maker
from tests.support.models import random_prompts, run, tiny_llama

SAMPLINGS = {"greedy": Sampling(), "t1": Sampling(1.0, seed=1), "t0.7-p0.9": Sampling(0.7, top_p=0.9, seed=2)}
CELLS = [
    (name, setting, sampling)
    for name, settings in SETTINGS.items()
    for setting in settings
    for sampling in SAMPLINGS
    if name != "lookahead" and (sampling == "greedy" or name not in ("sps", "eagle"))
]


@pytest.fixture(scope="module")
def small() -> Target:
    return Target(tiny_llama(layers=2, vocab_size=MATRIX_VOCAB))


@pytest.fixture(scope="module")
def drafter(small: Target, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Drafter]:
    return maker(small, tmp_path_factory)


def states(target: Target, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return target.prefill(torch.tensor(ids), capacity=len(ids)).clone()


def counts(steps: list[Step]) -> list[tuple[object, ...]]:
    """What a record holds of each step; the last path may go on behind the end of the text."""
    return [(step.tokens, step.rows, step.drafted, step.finish) for step in steps]


@pytest.mark.parametrize(("name", "setting", "sampling"), CELLS)
def test_steps_are_the_loops(
    small: Target, drafter: Callable[[str, str], Drafter], name: str, setting: str, sampling: str
) -> None:
    made, vanilla = drafter(name, setting), methods.load("vanilla", {}, small)
    assert replayable(made, SAMPLINGS[sampling])
    accepted = 0
    for number, prompt in enumerate(random_prompts(16, lengths=(1, 7, 30), vocab=MATRIX_VOCAB)):
        request = Request(prompt, NEW_TOKENS, frozenset({EOS}), SAMPLINGS[sampling], str(number))
        text, _ = run(small, vanilla, request)
        _, ordinary = run(small, made, request)
        found = list(replay(made, request, text, states(small, (*prompt, *text)), small.context))
        assert counts(found) == counts(ordinary)
        assert [step.path for step in found[:-1]] == [step.path for step in ordinary[:-1]]
        accepted += sum(step.accepted for step in found)
    assert name == "vanilla" or accepted > 0


def test_what_is_not_fixed_by_the_text_is_not_replayable(drafter: Callable[[str, str], Drafter]) -> None:
    assert not replayable(drafter("lookahead", "whole"), Sampling())
    assert not replayable(drafter("eagle", "paper"), Sampling(1.0))
    assert replayable(drafter("eagle", "paper"), Sampling())


def test_a_draft_of_rows_off_the_path_is_refused(small: Target, drafter: Callable[[str, str], Drafter]) -> None:
    made = drafter("eagle2", "small")
    assert isinstance(made, Eagle2)

    class Greedy:
        """Reads the state of the last row, accepted or not."""

        max_rows, rejection, path_only = made.max_rows, made.rejection, True
        begin = staticmethod(made.begin)

        def propose(self, context: object) -> Draft:
            return made.propose(context)  # type: ignore[arg-type]

        def observe(self, outcome: Outcome) -> None:
            last = outcome.draft.tree.size - 1
            path = [*outcome.path[:-1], last]
            made.observe(Outcome(outcome.draft, path, outcome.tokens, outcome.hidden, outcome.logits))

    request = Request(tuple(range(9)), NEW_TOKENS)
    text, _ = run(small, methods.load("vanilla", {}, small), request)
    with pytest.raises(NumericsError, match="path_only must be False"):
        list(replay(Greedy(), request, text, states(small, (*request.prompt_ids, *text)), small.context))
