"""The loop: how it counts, where it stops, and what it leaves in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import methods
from methods.base import Drafter, Request, Sampling
from methods.common.errors import ConfigError, NumericsError
from methods.decode.loop import decode
from methods.decode.target import Target
from tests.support.adversaries import Bushes, Knows
from tests.support.models import VOCAB, random_prompts, run, tiny_llama

PROMPT = (5, 9, 2, 7, 5, 9, 2)
SAMPLINGS = [Sampling(), Sampling(1.0)]


@pytest.fixture(scope="module")
def answer_of(target: Target) -> Callable[..., list[int]]:
    """Vanilla's answer, long enough for a drafter to look past any end."""
    known: dict[tuple[Any, ...], list[int]] = {}

    def answer(sampling: Sampling = SAMPLINGS[0], prompt: tuple[int, ...] = PROMPT) -> list[int]:
        if (sampling, prompt) not in known:
            vanilla = methods.load("vanilla", {}, target)
            known[sampling, prompt] = run(target, vanilla, Request(prompt, 48, sampling=sampling))[0]
        return known[sampling, prompt]

    return answer


def test_vanilla_commits_one_token_a_forward(target: Target) -> None:
    tokens, steps = run(target, methods.load("vanilla", {}, target), Request(PROMPT, 6))
    assert len(tokens) == 6
    assert [(len(s.tokens), s.rows, s.drafted, s.accepted) for s in steps] == [(1, 7, 0, 0)] + [(1, 1, 0, 0)] * 5
    assert [step.finish for step in steps] == [None] * 5 + ["length"]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_drafter_that_is_always_right_gives_depth_plus_one_tokens_a_cycle(
    target: Target, answer_of: Callable[..., list[int]], depth: int, sampling: Sampling
) -> None:
    answer = answer_of(sampling)
    drafter = Knows(answer, depth)
    tokens, steps = run(target, drafter, Request(PROMPT, 1 + 3 * (depth + 1), sampling=sampling))
    assert tokens == answer[: len(tokens)]
    assert [len(step.tokens) for step in steps] == [1] + [depth + 1] * 3
    assert [(step.rows, step.drafted, step.accepted) for step in steps[1:]] == [(depth + 1, depth, depth)] * 3
    # The last cycle ended the text: there is nothing left to draft, so nothing to observe.
    assert [outcome.path for outcome in drafter.observed] == [list(range(depth + 1))] * 2
    assert drafter.observed[0].tokens == answer[1 : depth + 2]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_a_drafter_that_is_always_wrong_gives_one_token_a_cycle(
    target: Target, answer_of: Callable[..., list[int]], sampling: Sampling
) -> None:
    answer = answer_of(sampling)
    tokens, steps = run(target, Knows(answer, 4, shift=1), Request(PROMPT, 12, sampling=sampling))
    assert tokens == answer[:12]
    assert [(len(step.tokens), step.accepted) for step in steps] == [(1, 0)] * 12


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(10))
def test_random_trees_change_the_speed_and_never_the_text(
    target: Target, answer_of: Callable[..., list[int]], seed: int, sampling: Sampling
) -> None:
    prompt = random_prompts(10)[seed]
    answer = answer_of(sampling, prompt)
    tokens, steps = run(target, Bushes(answer, seed), Request(prompt, 24, sampling=sampling))
    assert tokens == answer[:24]
    assert 1 < len(steps) < 24


@pytest.mark.parametrize("place", range(12))
def test_the_text_ends_with_the_first_end_token_wherever_in_a_draft_it_falls(
    target: Target, answer_of: Callable[..., list[int]], place: int
) -> None:
    # Cycles of five: places 0 to 11 are the prefill, every depth of two accepted paths, and both bonus tokens.
    sampling = Sampling(2.0)  # a text varied enough to hold a token that is new at any place
    answers = ((prompt, answer_of(sampling, prompt)) for prompt in random_prompts(40))
    prompt, answer = next((prompt, answer) for prompt, answer in answers if answer.index(answer[place]) == place)
    request = Request(prompt, 40, frozenset({answer[place], VOCAB + 1}), sampling)
    for drafter, cycles in ((Knows(answer, 4), math.ceil(place / 5)), (Knows(answer, 4, shift=1), place)):
        tokens, steps = run(target, drafter, request)
        assert tokens == answer[: place + 1]
        assert len(steps) == 1 + cycles
        assert [step.finish for step in steps] == [None] * cycles + ["eos"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("shift", [0, 1])
def test_no_draft_exceeds_the_length_limit(
    target: Target, answer_of: Callable[..., list[int]], limit: int, shift: int
) -> None:
    answer = answer_of()
    tokens, steps = run(target, Knows(answer, 4, shift), Request(PROMPT, limit))
    assert tokens == answer[:limit]
    assert steps[-1].finish == "length"


def test_an_end_token_on_the_last_place_is_an_end_and_behind_it_is_not(
    target: Target, answer_of: Callable[..., list[int]]
) -> None:
    answer = answer_of(SAMPLINGS[1])
    place = max(answer.index(token) for token in answer[:8])
    for limit, finish in ((place + 1, "eos"), (place, "length")):
        request = Request(PROMPT, limit, frozenset({answer[place]}), SAMPLINGS[1])
        tokens, steps = run(target, Knows(answer, 4), request)
        assert (tokens, steps[-1].finish) == (answer[:limit], finish)


def test_a_prompt_of_one_token_is_enough(target: Target, answer_of: Callable[..., list[int]]) -> None:
    answer = answer_of(prompt=(3,))
    assert run(target, Knows(answer, 3), Request((3,), 9))[0] == answer[:9]


@pytest.mark.parametrize("depth", [0, 2, 6])
def test_a_full_context_ends_the_text_at_its_last_place(
    llama: Any, answer_of: Callable[..., list[int]], depth: int
) -> None:
    target, answer = Target(llama, context=len(PROMPT) + 5), answer_of()
    tokens, steps = run(target, Knows(answer, depth), Request(PROMPT, 6))
    assert (tokens, steps[-1].finish) == (answer[:5], "context")
    # A limit that both set is the user's own, and reached as asked.
    tokens, steps = run(target, Knows(answer, depth), Request(PROMPT, 5))
    assert (tokens, steps[-1].finish) == (answer[:5], "length")


def test_a_prompt_must_leave_room_for_one_token(llama: Any, answer_of: Callable[..., list[int]]) -> None:
    vanilla, answer = methods.load("vanilla", {}, Target(llama)), answer_of()
    tokens, steps = run(Target(llama, context=8), vanilla, Request(PROMPT, 9))
    assert (tokens, steps[-1].finish) == (answer[:1], "context")
    for prompt, context in ((PROMPT, 7), (PROMPT, 6), ((), 7)):
        with pytest.raises(ConfigError, match=rf"question 0 turn 0: a prompt of {len(prompt)} tokens does not fit"):
            run(Target(llama, context=context), vanilla, Request(prompt, 9))


def drafters(target: Target, answer: list[int]) -> list[Drafter]:
    lookahead = methods.load("lookahead", {"window": 3, "ngram": 3, "guesses": 3}, target)
    return [Bushes(answer, 1), Knows(answer, 3), methods.load("pld", {"num_draft": 3}, target), lookahead]


@pytest.mark.parametrize("which", range(4), ids=["bushes", "knows", "pld", "lookahead"])
def test_after_every_cycle_the_cache_holds_the_committed_text_without_its_root(
    llama: Any, target: Target, answer_of: Callable[..., list[int]], which: int
) -> None:
    request, fresh = Request(PROMPT, 20, sampling=SAMPLINGS[1]), Target(llama)
    ids, compared = list(PROMPT), 0
    for step in decode(target, drafters(target, answer_of(SAMPLINGS[1]))[which], request):
        ids += step.tokens
        if step.finish is not None:
            break
        assert target.cache.length == len(ids) - 1
        fresh.prefill(torch.tensor(ids[:-1]), capacity=len(ids))
        for layer in range(7):
            for kept, recomputed in zip(target.cache.rows(layer), fresh.cache.rows(layer), strict=True):
                assert (kept - recomputed).abs().max() < 1e-9
        compared += 1
    assert compared > 3


def test_phases_end_in_the_order_of_the_cycle(target: Target) -> None:
    phases: list[str] = []
    list(decode(target, methods.load("vanilla", {}, target), Request(PROMPT, 3), phases.append))
    assert phases == ["prefill", *["draft", "verify", "accept", "commit"] * 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_stop_the_run(bad: float) -> None:
    model = tiny_llama(layers=1)
    target = Target(model)
    model.lm_head.weight[3] = bad
    with pytest.raises(NumericsError, match="after the prompt of question q7"):
        run(target, methods.load("vanilla", {}, target), Request(PROMPT, 3, question="q7"))
