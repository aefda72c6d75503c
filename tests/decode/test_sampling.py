"""From logits to draws, against slow versions in numpy, and what the draws may depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from methods.base import Sampling
from methods.common.errors import ConfigError, NumericsError
from methods.decode.draws import Draws
from methods.decode.sampling import (
    check_finite,
    distribution,
    draw,
    draw_siblings,
    likeliest,
    log_distribution,
    scores,
    target_tokens,
    warped,
    without,
)
from methods.decode.topk import greedy, top

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
    with pytest.raises(ConfigError, match=f"^{next(iter(bad))}="):
        Sampling(**bad)
    with pytest.raises(ConfigError, match=r"^top_k=-1"):
        Sampling(top_k=-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_likeliest_are_scored_in_float32_and_the_logits_stay_as_they_are(dtype: torch.dtype) -> None:
    logits = (torch.randn(4, 2048) * 3).to(dtype)
    before = logits.clone()
    scores, ids = likeliest(logits, 7)
    assert torch.equal(logits, before)
    best = logits.float().argsort(dim=-1, descending=True, stable=True)[:, :7]
    assert torch.equal(ids, best)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, log_distribution(logits).gather(1, best))


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


CPU = torch.device("cpu")
UNIFORMS = [0.34175888610137106, 0.9862626714270503, 0.5459465772888236]
NOISE = [-1.1807939040992168, 0.9306236652353205, 0.8612841518433719, 5.097325510838298, 0.11477426244648377]
NOISE += [1.2533704100014273]
TOKENS = [35, 0, 46, 6, 27, 29, 7, 46]
KEY = {"seed": 3, "question": "q7", "turn": 1}


def uniform(purpose: str = "draft", position: int = 5, lane: int = 0, bound: int = 40, **key: object) -> float:
    draws = Draws(**{**KEY, **key}, positions=bound)
    return float(draws.uniform(purpose, torch.tensor(position), lane))


def test_draws_do_not_depend_on_how_many_are_made_or_when() -> None:
    draws = Draws(**KEY, positions=30)
    draws.uniform("coin", torch.arange(30), 2)
    batch = draws.uniform("draft", torch.tensor([[9, 5], [5, 0]]))
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
        *(uniform(purpose) for purpose in ("coin", "residual", "window")),
        uniform(question="7", seed=3),
        uniform(question="q71", turn=1),
        uniform(question="q", turn=71),
    ]
    assert len({uniform(), *others}) == len(others) + 1


def test_draws_are_the_same_numbers_in_every_release() -> None:
    # Records store only the seed: whoever changes a number here raises bench.plan.cells.DRAWS, or old and new mix.
    draws = Draws(0, "0", 0, 3)
    assert draws.uniform("draft", torch.arange(3)).tolist() == UNIFORMS
    noise = draws.gumbel(range(2), 3, CPU)
    assert noise.flatten().tolist() == pytest.approx(NOISE, rel=1e-6)  # a logarithm may differ in its last bit
    assert target_tokens(torch.zeros(8, 48), Sampling(1.0), draws, range(8)).tolist() == TOKENS


def test_lanes_and_positions_are_uniform_and_bounded() -> None:
    draws = Draws(0, "0", 0, 2000)
    lanes = torch.stack([draws.uniform("coin", torch.arange(2000), lane) for lane in range(16)])
    assert 0.0 <= lanes.min() < lanes.max() < 1.0
    assert lanes.unique().numel() == lanes.numel()
    assert kstest(lanes.flatten().numpy(), "uniform").pvalue > 1e-6
    for lane in (-1, 16):
        with pytest.raises(ValueError, match="must be below 16"):
            draws.uniform("coin", torch.arange(2), lane)


def noise(positions: range = range(5, 6), vocab: int = 7, **key: object) -> torch.Tensor:
    return Draws(**{**KEY, **key}, positions=1).gumbel(positions, vocab, CPU)


def test_noise_does_not_depend_on_which_other_positions_were_asked_for_or_when() -> None:
    draws = Draws(**KEY, positions=1)
    alone = {position: noise(range(position, position + 1))[0] for position in range(12)}
    for asked in (range(3, 7), range(5, 12), range(6), range(9, 10), range(12), range(3, 7)):
        rows = draws.gumbel(asked, 7, CPU)
        assert (rows.dtype, rows.shape) == (torch.float32, (len(asked), 7))
        assert all(torch.equal(row, alone[position]) for row, position in zip(rows, asked, strict=True))
    assert torch.equal(draws.gumbel(range(5, 6), 4, CPU)[0], alone[5][:4]), "a small vocabulary is part of a large one"


def test_noise_differs_in_every_part_of_its_key_and_between_tokens() -> None:
    others = [
        {"seed": 4},
        {"question": "q8"},
        {"turn": 2},
        {"question": "q71", "turn": 1},
        {"question": "q", "turn": 71},
    ]
    rows = torch.cat([noise(range(200)), *(noise(**key) for key in others)])
    assert rows.unique().numel() == rows.numel()


def test_noise_is_standard_gumbel_and_uncorrelated_from_one_position_to_the_next() -> None:
    rows = noise(range(100), 2000).double()
    assert kstest(rows.flatten().numpy(), "gumbel_r").pvalue > 1e-6
    correlations = torch.corrcoef(torch.cat([rows, rows.roll(1, 1)]))
    assert correlations.fill_diagonal_(0.0).abs().max() < 6 / math.sqrt(2000)


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_no_output_of_the_stream_makes_an_infinite_noise(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(random_raw=lambda count: np.full(count, bits, np.uint64))
    monkeypatch.setattr(Draws, "_stream", lambda *_: stream)
    assert noise().isfinite().all()


def test_rows_are_made_once_a_turn_and_dropped_behind_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], Draws._gumbel_row
    monkeypatch.setattr(Draws, "_gumbel_row", lambda draws, *asked: made.append(asked[0]) or real(draws, *asked))
    draws = Draws(**KEY, positions=1)
    for root, height in ((4, 6), (5, 0), (6, 3), (9, 6), (12, 0)):
        draws.gumbel(range(root + 1, root + 2 + height), 7, CPU)
    assert sorted(made) == list(range(5, 17))
    assert [position for position, *_ in draws._noise] == [13, 14, 15, 16]


def test_the_targets_token_is_the_argmax_of_logits_and_at_t_above_0_of_noise_too() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.5, 0.0, 0.5]])
    draws, positions = Draws(**KEY, positions=1), range(4, 6)
    assert target_tokens(logits, Sampling(), draws, positions).tolist() == [1, 0]
    added = noise(positions, 3)
    assert torch.equal(scores(logits, Sampling(0.5), draws, positions), logits / 0.5 + added)
    assert target_tokens(logits, Sampling(0.5), draws, positions).tolist() == (logits / 0.5 + added).argmax(1).tolist()
    # Of equals the lowest id: an enormous logit swallows the noise.
    assert target_tokens(torch.tensor([[0.0, 1e9, 1e9]]), Sampling(1.0), draws, range(1)).tolist() == [1]


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_p=0.6), Sampling(1.0, top_k=3)], ids=str)
def test_a_token_depends_on_its_logits_and_position_and_not_on_the_batch(sampling: Sampling) -> None:
    logits = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    depths = torch.arange(40) % 7
    together = target_tokens(logits, sampling, Draws(**KEY, positions=1), range(5, 12), depths).tolist()
    draws = Draws(**KEY, positions=1)
    for node in reversed(range(40)):
        position = 5 + int(depths[node])
        alone = target_tokens(logits[node : node + 1], sampling, draws, range(position, position + 1))
        assert alone.tolist() == [together[node]]


WARPS = [Sampling(1.0), Sampling(0.6), Sampling(1.0, top_k=4), Sampling(1.0, top_p=0.8), Sampling(1.5, 0.7, 6)]
LOGITS = torch.tensor([0.3, -0.5, 1.0, 0.7, -0.2, 1.8, 0.7, -0.9, -math.inf])
RACES = 40_000


def law_of_the_race(sampling: Sampling, law: torch.Tensor) -> float:
    """p-value of many positions' tokens against a law; 0 if one has no mass at all."""
    tokens = target_tokens(LOGITS.expand(RACES, 9), sampling, Draws(**KEY, positions=1), range(RACES))
    counts, due = tokens.bincount(minlength=9).numpy(), law.double().numpy() * RACES
    assert due[due > 0].min() > 20
    return 0.0 if counts[due == 0].any() else float(chisquare(counts[due > 0], due[due > 0] / due.sum() * RACES).pvalue)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("sampling", WARPS, ids=str)
def test_the_law_of_the_race_is_the_warped_softmax(sampling: Sampling) -> None:
    assert law_of_the_race(sampling, distribution(LOGITS, sampling)) > 1e-6
    assert torch.equal(warped(LOGITS, sampling).isneginf(), distribution(LOGITS, sampling) == 0)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("sampling", WARPS, ids=str)
def test_negative_control_a_race_at_another_temperature_or_without_filters_is_noticed(sampling: Sampling) -> None:
    other = replace(sampling, temperature=0.9 * sampling.temperature)
    assert law_of_the_race(other, distribution(LOGITS, sampling)) < 1e-6
    if sampling.top_p < 1.0 or sampling.top_k:
        assert law_of_the_race(Sampling(sampling.temperature), distribution(LOGITS, sampling)) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_logit_that_is_not_a_number_is_refused_but_a_masked_token_is_fine(bad: float) -> None:
    check_finite(torch.tensor([[0.0, -math.inf]]), "here")
    with pytest.raises(NumericsError, match="not finite here"):
        check_finite(torch.tensor([[0.0, 1.0], [bad, 1.0]]), "here")


def test_every_tensor_is_made_where_the_logits_are() -> None:
    rows = torch.randn(2, 1024, generator=torch.Generator().manual_seed(0))
    sampling, uniforms = Sampling(0.8, top_p=0.9, top_k=40), torch.full((2, 2), 0.7, dtype=torch.float64)

    def everything() -> list[torch.Tensor]:
        draws, probs = Draws(**KEY, positions=9), distribution(rows, sampling)
        made = [draws.gumbel(range(4), 7, CPU), draws.uniform("coin", position), probs, *draw_siblings(probs, uniforms)]
        return [*made, greedy(rows), top(rows, 3), target_tokens(rows, sampling, draws, range(2))]

    position = torch.tensor([3, 1])
    expected = everything()
    with torch.device("meta"):  # whatever names no device is made there, and holds nothing
        assert all(map(torch.equal, everything(), expected))


def test_shapes_in_signatures_are_enforced_in_tests() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        draw(torch.ones(3, 4), torch.zeros(2))
