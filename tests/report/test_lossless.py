"""Losslessness: what the audit measures on an output, and what the verdict makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import methods
from bench.measure.audit import gaps
from bench.report.lossless import NEAR_TIE, Verdict, judge
from methods.base import Request, Sampling
from methods.decode.draws import Draws
from methods.decode.target import Target
from tests.support.commands import block, turn
from tests.support.models import random_prompts, run

GREEDY, SAMPLED, WARPED = Sampling(), Sampling(0.7, seed=3), Sampling(0.8, top_p=0.9, top_k=20, seed=4)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WARPED], ids=["greedy", "sampled", "warped"])
PROMPT = random_prompts(1, lengths=[9])[0]
LENGTH = 140
"""Longer than the audit's chunk of 128 positions."""


@pytest.fixture(scope="module")
def answers(target: Target) -> dict[Sampling, tuple[Request, list[int]]]:
    """Vanilla's answer for each way of sampling."""
    found = {}
    for sampling in (GREEDY, SAMPLED, WARPED):
        request = Request(PROMPT, LENGTH, frozenset(), sampling, "q", 1)
        found[sampling] = (request, run(target, methods.load("vanilla", {}, target), request)[0])
    return found


def expected_gap(model: Any, request: Request, output: list[int], index: int) -> float:
    """The gap of one position from its definition, by a forward of the stock model over the text before it."""
    ids = [*request.prompt_ids, *output[:index]]
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    token = output[index]
    if not request.sampling.greedy:
        draws = Draws(request.sampling.seed, request.question, request.turn, 1)
        noise = draws.gumbel(range(len(ids), len(ids) + 1), len(logits), torch.device("cpu"))[0]
        logits = logits + request.sampling.temperature * noise
    return float(logits.max() - logits[token])


@SAMPLINGS
@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, LENGTH])
def test_what_the_target_itself_emits_has_no_gap(
    sampling: Sampling, length: int, target: Target, answers: dict[Sampling, tuple[Request, list[int]]]
) -> None:
    request, output = answers[sampling]
    assert len(output) == LENGTH
    assert gaps(target, request, output[:length], keyed=True) == []


@SAMPLINGS
@pytest.mark.parametrize("index", [0, 1, 60, 127, 128, LENGTH - 1])
def test_a_wrong_token_is_found_where_it_stands_with_its_size(
    sampling: Sampling, index: int, target: Target, llama: Any, answers: dict[Sampling, tuple[Request, list[int]]]
) -> None:
    request, output = answers[sampling]
    wrong = [*output[:index], (output[index] + 1) % 48, *output[index + 1 :]]
    found = gaps(target, request, wrong, keyed=True)
    assert found[0][0] == index, "nothing before it is blamed"
    assert found[0][1] > 0
    # After it the text is another one, so what follows differs from what the target would say there.
    assert [position for position, _ in found] == sorted({position for position, _ in found})
    assert len(found) <= LENGTH - index
    if sampling is not WARPED:
        for position, gap in [found[0], found[-1]]:
            assert gap == pytest.approx(expected_gap(llama, request, wrong, position), rel=1e-4, abs=1e-6)


@SAMPLINGS
def test_a_token_left_out_or_put_twice_is_found(
    sampling: Sampling, target: Target, answers: dict[Sampling, tuple[Request, list[int]]]
) -> None:
    request, output = answers[sampling]
    for wrong in ([*output[:50], *output[51:]], [*output[:50], output[49], *output[50:]]):
        found = gaps(target, request, wrong, keyed=True)
        assert found
        assert found[0][0] >= 50
        assert max(gap for _, gap in found) > NEAR_TIE["float32"]


@pytest.mark.parametrize(
    "change", [{"question": "other"}, {"turn": 0}, {"sampling": replace(SAMPLED, seed=9)}], ids=str
)
def test_draws_of_another_question_turn_or_seed_are_found(
    change: dict[str, Any], target: Target, answers: dict[Sampling, tuple[Request, list[int]]]
) -> None:
    request, output = answers[SAMPLED]
    assert len(gaps(target, replace(request, **change), output, keyed=True)) > LENGTH // 8


def test_without_keyed_draws_only_an_impossible_token_is_a_gap(
    target: Target, llama: Any, answers: dict[Sampling, tuple[Request, list[int]]]
) -> None:
    request, output = answers[WARPED]
    assert gaps(target, replace(request, question="other"), output, keyed=False) == []
    narrow = replace(request, sampling=replace(WARPED, top_k=1))
    greedy, greedy_output = answers[GREEDY]
    assert gaps(target, narrow, greedy_output, keyed=False) == []
    impossible = [*greedy_output[:-1], (greedy_output[-1] + 1) % 48]
    ((index, gap),) = gaps(target, narrow, impossible, keyed=False)
    # With k=1 the edge is the most likely token itself.
    assert (index, gap) == (LENGTH - 1, pytest.approx(expected_gap(llama, greedy, impossible, LENGTH - 1)))


def test_logits_that_are_not_numbers_are_never_called_lossless(
    target: Target, answers: dict[Sampling, tuple[Request, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, output = answers[GREEDY]
    real = target.logits
    monkeypatch.setattr(target, "logits", lambda hidden: real(hidden).fill_(torch.nan))
    try:
        found = gaps(target, request, output, keyed=True)
    except (RuntimeError, ValueError):
        return
    assert found, "no gap was reported at all"


IDS = {"output_ids": [1, 2, 3]}
OTHER = {"output_ids": [1, 2, 4]}


def verdict(*turns: dict[str, Any], dtype: str = "float32") -> Verdict:
    """Judge a method whose turns are these, beside a vanilla that said 1 2 3 and has no gap."""
    made = [
        block(str(number), {"m": [turn([3], **each)], "vanilla": [turn([3], **IDS, gaps=[])]})
        for number, each in enumerate(turns)
    ]
    return judge(made, "m", dtype)


def test_vanilla_s_very_tokens_are_identical_audited_or_not() -> None:
    for one in (verdict({**IDS, "gaps": []}), verdict(IDS), verdict({**IDS, "gaps": [[2, 1e-4]]})):
        assert (one.identical, one.near_tie, one.violations, one.unchecked, one.ok) == (1, 0, 0, 0, True)
        assert str(one) == "identical 1/1"


@pytest.mark.parametrize("dtype", NEAR_TIE)
def test_other_tokens_are_a_near_tie_within_rounding_and_a_violation_beyond(dtype: str) -> None:
    bound = NEAR_TIE[dtype]
    within = verdict({**OTHER, "gaps": [[2, bound]]}, dtype=dtype)
    beyond = verdict({**OTHER, "gaps": [[0, bound / 2], [2, bound * 1.01]]}, dtype=dtype)
    assert (within.near_tie, within.violations, within.ok) == (1, 0, True)
    assert (beyond.near_tie, beyond.violations, beyond.ok) == (0, 1, False)
    assert beyond.largest_gap == bound * 1.01
    assert str(within) == "identical 0/1, near-tie 1"
    assert str(beyond) == "identical 0/1, VIOLATION 1"


def test_the_same_tokens_as_a_vanilla_that_is_itself_wrong_are_a_violation() -> None:
    assert verdict({**IDS, "gaps": [[1, 5.0]]}).violations == 1


def test_other_tokens_without_an_audit_are_unchecked_and_said_to_be() -> None:
    one = verdict(OTHER, IDS)
    assert (one.identical, one.unchecked, one.violations) == (1, 1, 0)
    assert str(one) == "identical 1/2, not audited 1"


def test_every_turn_of_every_block_counts_and_blocks_of_other_methods_do_not() -> None:
    both = [turn([3], **IDS, gaps=[]), turn([3], **OTHER, gaps=[[2, 9.0]])]
    blocks = [
        block("a", {"vanilla": [turn([3], **IDS)] * 2, "m": both}),
        block("a", {"vanilla": [turn([3], **IDS)] * 2, "another": both}),
        block("b", {"vanilla": [turn([3], **IDS)], "m": [turn([3], **OTHER, gaps=[])]}),
    ]
    one = judge(blocks, "m", "float32")
    assert one == Verdict(identical=1, near_tie=1, violations=1, unchecked=0, largest_gap=9.0)
    assert str(one) == "identical 1/3, near-tie 1, VIOLATION 1"


def test_vanilla_is_judged_too() -> None:
    fine = block("a", {"vanilla": [turn([3], **IDS, gaps=[])]})
    wrong = block("b", {"vanilla": [turn([3], **IDS, gaps=[[0, 1.0]])]})
    assert judge([fine], "vanilla", "float32").ok
    assert judge([fine, wrong], "vanilla", "float32").violations == 1
