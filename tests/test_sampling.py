"""From logits to draws, against slow versions in numpy, and what the draws may depend on."""

from __future__ import annotations

import math

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import kstest

from methods.base import ConfigError, NumericsError, Sampling
from methods.sampling import (
    Draws,
    check_finite,
    distribution,
    draw,
    draw_siblings,
    greedy,
    log_distribution,
    target_tokens,
    without,
)

# Halves are exact in float32, so equal logits stay equal after any temperature and ties are common.
logit_rows = st.lists(st.integers(-6, 6).map(lambda half: half / 2), min_size=1, max_size=9)
masses = st.lists(st.sampled_from([0.0, 0.0, 0.125, 0.25, 1.0, 1e-7]), min_size=1, max_size=9)
uniforms = st.one_of(st.sampled_from([0.0, 0.5, 1 - 2.0**-53]), st.floats(0, 1, exclude_max=True))


def slow_distribution(logits: list[float], sampling: Sampling) -> list[float]:
    """One token at a time: order by logit, then id; keep k; keep until the mass before reaches p; renormalise."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = {token: math.exp(logits[token] / sampling.temperature) for token in order}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    before = 0.0
    for token in order:
        assume(sampling.top_p == 1.0 or abs(before - sampling.top_p) > 1e-5)
        if before >= sampling.top_p:
            break
        kept[token] = weights[token]
        before += weights[token] / total
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(len(logits))]


@given(logit_rows, st.sampled_from([0.5, 0.7, 1.0, 2.0]), st.integers(0, 10), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_warping_equals_the_slow_version_ties_included(logits: list[float], t: float, k: int, p: float) -> None:
    sampling = Sampling(temperature=t, top_p=p, top_k=k)
    expected = slow_distribution(logits, sampling)
    found = distribution(torch.tensor([logits, logits]).double(), sampling)
    assert found.dtype == torch.float32
    assert torch.equal(found[0], found[1])
    assert np.allclose(found[0], expected, atol=1e-6)
    assert [mass > 0 for mass in found[0].tolist()] == [mass > 0 for mass in expected]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1.0, top_k=2), [0, 1]),
        (Sampling(1.0, top_k=4), [0, 1, 2, 3]),
        (Sampling(1.0, top_p=0.25), [0]),
        (Sampling(1.0, top_p=0.26), [0, 1]),
        (Sampling(1.0, top_p=0.5), [0, 1]),
        (Sampling(1.0, top_p=0.99), [0, 1, 2, 3]),
        (Sampling(1.0, top_p=1e-9), [0]),
        (Sampling(1.0, top_p=0.5, top_k=3), [0, 1]),
    ],
)
def test_among_equals_the_lowest_ids_stay_and_a_mass_that_reaches_p_is_enough(
    sampling: Sampling, kept: list[int]
) -> None:
    found = distribution(torch.zeros(4), sampling)
    assert found.nonzero()[:, 0].tolist() == kept
    assert torch.allclose(found[kept], torch.tensor(1 / len(kept)))


def test_greedy_takes_the_lowest_id_of_equals_and_has_no_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert greedy(logits).tolist() == [1, 0]
    with pytest.raises(ValueError, match="greedy decoding has no distribution"):
        distribution(logits, Sampling())


@pytest.mark.parametrize("bad", [{"temperature": -0.1}, {"temperature": 101.0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_sampling_out_of_range_is_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"decode.{next(iter(bad))}="):
        Sampling(**bad)
    with pytest.raises(ConfigError, match=r"decode\.top_k=-1"):
        Sampling(top_k=-1)


def test_log_distribution_scores_in_float32_without_any_warp() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    scores = log_distribution(logits)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double().exp(), logits.exp() / logits.exp().sum())


@given(masses, uniforms)
def test_a_draw_inverts_the_cdf_in_id_order_and_never_returns_zero_mass(probs: list[float], u: float) -> None:
    assume(sum(probs) > 0)
    token = int(draw(torch.tensor(probs), torch.tensor(u, dtype=torch.float64)))
    assert probs[token] > 0
    exact = [float(mass) for mass in torch.tensor(probs).double()]
    point = u * sum(exact)
    below, upto = sum(exact[:token]), sum(exact[: token + 1])
    assert below - 1e-12 <= point <= upto + 1e-12


def test_a_draw_on_a_boundary_belongs_to_the_token_above_it() -> None:
    probs = torch.tensor([0.25, 0.25, 0.5])
    points = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    assert draw(probs.expand(4, 3), points).tolist() == [0, 1, 2, 2]


def test_the_cdf_is_float64_so_that_a_draw_close_to_a_boundary_is_decided_by_the_probabilities() -> None:
    probs = torch.tensor([0.1, 0.7, 0.2])
    boundary = probs[0].double() / probs.double().sum()
    points = torch.stack([boundary * (1 - 1e-12), boundary * (1 + 1e-12)])
    assert draw(probs.expand(2, 3), points).tolist() == [0, 1]


@given(masses, st.lists(uniforms, min_size=1, max_size=4))
def test_siblings_are_drawn_one_after_the_other_without_replacement(probs: list[float], us: list[float]) -> None:
    assume(sum(probs) > 0)
    row = torch.tensor(probs)
    tokens, left = draw_siblings(row[None], torch.tensor(us, dtype=torch.float64)[:, None])
    remaining = row.clone()
    for rank, u in enumerate(us):
        token = int(tokens[0, rank])
        if remaining.sum() == 0:
            assert token == 0  # the support ran out: nothing is left to verify against either
            continue
        assert token == int(draw(remaining, torch.tensor(u, dtype=torch.float64)))
        assert remaining[token] > 0
        remaining[token] = 0
        remaining = remaining / remaining.sum() if remaining.sum() > 0 else remaining
    assert torch.allclose(left[0], remaining)


def test_without_removes_one_token_and_ends_in_zeros() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    found = without(probs, torch.tensor([0, 2]))
    assert found.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]


KEY = {"seed": 3, "question": "q7", "turn": 1}


def uniform(purpose: str = "target", position: int = 5, lane: int = 0, bound: int = 40, **key: object) -> float:
    draws = Draws(**{**KEY, **key}, positions=bound)
    return float(draws.uniform(purpose, torch.tensor(position), lane))


def test_draws_do_not_depend_on_how_many_are_made_or_when() -> None:
    draws = Draws(**KEY, positions=30)
    draws.uniform("coin", torch.arange(30), 2)
    batch = draws.uniform("target", torch.tensor([[9, 5], [5, 0]]))
    assert batch.dtype == torch.float64
    assert batch[0, 1] == batch[1, 0] == uniform(bound=6) == uniform(bound=4000)
    assert batch[0, 0] == uniform(position=9)


def test_draws_differ_in_every_part_of_their_key() -> None:
    others = [
        uniform(seed=4),
        uniform(question="q8"),
        uniform(turn=2),
        uniform(position=6),
        uniform(lane=1),
        uniform(lane=15),
        *(uniform(purpose) for purpose in ("draft", "coin", "residual", "window")),
        uniform(question="7", seed=3),
        uniform(question="q71", turn=1),
        uniform(question="q", turn=71),
    ]
    assert len({uniform(), *others}) == len(others) + 1


def test_draws_are_the_same_numbers_in_every_release() -> None:
    # Records store only the seed: a change here would orphan every result at T > 0.
    draws = Draws(0, "0", 0, 3)
    assert draws.uniform("target", torch.arange(3)).tolist() == [
        0.038505319062230536,
        0.3138855791860471,
        0.7956706269300545,
    ]


def test_lanes_and_positions_are_uniform_and_bounded() -> None:
    draws = Draws(0, "0", 0, 2000)
    lanes = torch.stack([draws.uniform("coin", torch.arange(2000), lane) for lane in range(16)])
    assert 0.0 <= lanes.min() < lanes.max() < 1.0
    assert lanes.unique().numel() == lanes.numel()
    assert kstest(lanes.flatten().numpy(), "uniform").pvalue > 1e-6
    for lane in (-1, 16):
        with pytest.raises(ValueError, match="must be below 16"):
            draws.uniform("coin", torch.arange(2), lane)


def test_the_targets_token_is_an_argmax_or_a_draw_keyed_by_its_position() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.5, 0.0, 0.0]])
    draws = Draws(0, "0", 0, 10)
    positions = torch.tensor([4, 9])
    assert target_tokens(logits, Sampling(), draws, positions).tolist() == [1, 0]
    sampling = Sampling(1.0)
    expected = draw(distribution(logits, sampling), draws.uniform("target", positions))
    assert torch.equal(target_tokens(logits, sampling, draws, positions), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_logit_that_is_not_a_number_is_refused_but_a_masked_token_is_fine(bad: float) -> None:
    check_finite(torch.tensor([[0.0, -math.inf]]), "here")
    with pytest.raises(NumericsError, match="not finite here"):
        check_finite(torch.tensor([[0.0, 1.0], [bad, 1.0]]), "here")


def test_shapes_in_signatures_are_enforced_in_tests() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        draw(torch.ones(3, 4), torch.zeros(2))
