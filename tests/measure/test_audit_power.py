"""What the audit excuses and what it finds: no rounding is ever blamed, and sampling that is off by a little shows."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.audit import chosen_gap, possible_gap
from bench.report.lossless import NEAR_TIE
from methods.base import Sampling
from methods.decode.draws import Draws
from methods.decode.sampling import target_tokens

SAMPLINGS = [
    Sampling(),
    Sampling(1.0),
    Sampling(0.5),
    Sampling(3.0),
    Sampling(1.0, top_k=3),
    Sampling(1.0, top_p=0.8),
    Sampling(0.7, top_p=0.95),
    Sampling(1.5, top_p=0.6, top_k=5),
    Sampling(1.0, top_p=0.999, top_k=12),
]
DRAWS = Draws(0, "q", 0, 1)
ROWS, VOCAB = 40, 12


def peaked(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Logits like a language model's: a power law of the rank, steeper here and flatter there, in random order."""
    random = torch.Generator().manual_seed(seed)
    steep = 1.2 + 2.8 * torch.rand(rows, 1, generator=random)
    ranked = -steep * torch.arange(1, vocab + 1).log() + 0.5 * torch.randn(rows, vocab, generator=random)
    return 20 + ranked.gather(1, torch.rand(rows, vocab, generator=random).argsort(1))


def gap(logits: torch.Tensor, drawn: Sampling, claimed: Sampling, seen: torch.Tensor) -> torch.Tensor:
    """Gaps of tokens that were drawn from ``logits`` one way and are held against another and other logits."""
    positions = range(len(logits))
    return chosen_gap(seen.double(), target_tokens(logits, drawn, DRAWS, positions), claimed, DRAWS, positions)


@given(
    st.sampled_from(SAMPLINGS),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(0, 999),
)
def test_what_an_error_of_the_logits_makes_the_target_emit_has_no_larger_gap(
    sampling: Sampling, error: float, steps: float, seed: int
) -> None:
    logits = peaked(ROWS, VOCAB, seed)
    if steps:
        logits = (logits / steps).round() * steps  # ties, as in bfloat16
    random = torch.Generator().manual_seed(seed)
    other = logits + error * (torch.rand(ROWS, VOCAB, generator=random) - 0.5)  # any difference is off by it at most
    found = gap(other, sampling, sampling, seen=logits)
    assert found.max() <= error + 2e-5 * max(1.0, sampling.temperature)
    if not sampling.greedy:
        emitted = target_tokens(other, sampling, DRAWS, range(ROWS))
        assert possible_gap(logits.double(), emitted, sampling).max() <= error + 2e-5


def test_beyond_top_k_the_gap_is_what_is_lacking_to_the_kth_and_a_dropped_token_beats_nobody() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.5, 0.0]], dtype=torch.float64)
    for token, expected in enumerate([0.0, 0.0, 0.5, 2.0]):
        assert float(possible_gap(logits, torch.tensor([token]), Sampling(0.5, top_k=2))) == pytest.approx(expected)
    # The third token wins this race. Where it is dropped, the best of the first two is what the target emits ...
    far = next(t for t in range(999) if DRAWS.gumbel(range(t, t + 1), 4, torch.device("cpu"))[0].argmax() == 2)
    near = {"draws": DRAWS, "positions": range(far, far + 1)}
    narrow = Sampling(1.0, top_k=2)
    best = target_tokens(logits, narrow, **near)
    assert float(chosen_gap(logits, best, narrow, **near)) == 0.0
    # ... and where it is kept, by how much it is ahead: unless half a logit, its distance from the edge, explains it.
    wide = Sampling(1.0, top_k=3)
    ahead = float(chosen_gap(logits, best, Sampling(1.0), **near))
    assert float(chosen_gap(logits, best, wide, **near)) == pytest.approx(min(ahead, 1.5))


def test_beyond_top_p_the_gap_is_the_log_odds_of_the_mass_ahead_or_a_change_of_places() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.06, 0.04]], dtype=torch.float64).log()
    sampling = Sampling(1.0, top_p=0.85)

    def odds(mass: float) -> float:
        return math.log(mass / (1 - mass))

    lacking = [0.0, 0.0, odds(0.9) - odds(0.85), math.log(0.06 / 0.04)]
    for token, expected in enumerate(lacking):
        found = float(possible_gap(logits, torch.tensor([token]), sampling))
        # The last one takes the third's place (0.41), at which the mass lacks less (0.46): the larger counts.
        assert found == pytest.approx(max(expected, lacking[2]) if token == 3 else expected, abs=1e-5)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_token_that_the_target_cannot_emit_is_beyond_every_bound_and_json_can_hold_the_gap(
    sampling: Sampling,
) -> None:
    logits = torch.tensor([[1.0, 0.0, -math.inf, -math.inf]]).double().clamp(min=-1e6)
    emitted = torch.tensor([3])
    found = [chosen_gap(logits, emitted, sampling, DRAWS, range(1))]
    if not sampling.greedy:
        found.append(possible_gap(logits, emitted, sampling))
    for one in found:
        assert one.item() > 20 * max(NEAR_TIE.values())
        json.dumps(one.tolist(), allow_nan=False)


POWER = {
    # (drawn, claimed): the share of tokens whose gap is beyond the bound of bfloat16, at least
    "T=0.9 for 1": (Sampling(0.9), Sampling(1.0), 1 / 4000),
    "T=0.8 for 1": (Sampling(0.8), Sampling(1.0), 0.01),
    "T=1 for 0.7": (Sampling(1.0), Sampling(0.7), 0.02),
    "top-p 0.95 for 1": (Sampling(1.0, top_p=0.95), Sampling(1.0), 0.01),
    "top-p 1 for 0.95": (Sampling(1.0), Sampling(1.0, top_p=0.95), 0.01),
    "top-k 50 for none": (Sampling(1.0, top_k=50), Sampling(1.0), 0.005),
    "top-k none for 50": (Sampling(1.0), Sampling(1.0, top_k=50), 0.01),
}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("mistake", POWER)
def test_sampling_that_is_off_by_a_little_is_beyond_the_bound_of_bfloat16(mistake: str) -> None:
    drawn, claimed, share = POWER[mistake]
    logits = peaked(4000, 1024)
    rounded = logits.bfloat16()
    assert gap(rounded, claimed, claimed, seen=logits).max() < NEAR_TIE["bfloat16"] / 3, "rounding alone is not"
    found = gap(rounded, drawn, claimed, seen=logits)
    beyond = float((found > NEAR_TIE["bfloat16"]).double().mean())
    print(f"\n{mistake}: {float((found > 0).double().mean()):.2%} of tokens differ, {beyond:.3%} beyond the bound")
    assert beyond >= share
