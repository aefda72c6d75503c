"""``top`` against a stable sort: the one place where draft trees break ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.decode.topk import greedy, top

AWKWARD = [-math.inf, -1e30, -1.5, -1e-40, -0.0, 0.0, 1e-40, 1.5, 2.0]


@given(st.lists(st.sampled_from(AWKWARD) | st.floats(width=32, allow_nan=False), min_size=1, max_size=30), st.data())
def test_the_top_scores_are_those_of_a_stable_sort(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    for row, found in zip((scores, scores[::-1]), top(torch.tensor([scores, scores[::-1]]), k).tolist(), strict=True):
        assert found == sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from([torch.float32, torch.bfloat16]), st.data())
def test_a_wide_row_read_in_runs_has_the_top_of_a_stable_sort(
    seed: int, k: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    width = data.draw(st.sampled_from([1024, 2560, 2561]))
    levels = data.draw(st.sampled_from([1, 2, 5, 10_000]))  # few levels: nearly every choice is a tie
    random = torch.Generator().manual_seed(seed)
    rows = data.draw(st.sampled_from([2, 17]))
    scores = torch.randint(-levels, levels + 1, (rows, width), generator=random).to(dtype)
    scores[scores == -1] = -math.inf
    expected = scores.float().argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(top(scores, k), expected[:, :k])
    assert torch.equal(greedy(scores), expected[:, 0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [513, 1024])
@given(
    st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=30), st.integers(1, 12), st.sampled_from([0.0, 3.0, 9.0])
)
def test_a_wide_row_of_awkward_scores_has_the_top_of_a_stable_sort(
    dtype: torch.dtype, width: int, scores: list[float], k: int, below: float
) -> None:
    """Read by their bits where all best are above zero, and again where some are not: both signs, zeros, subnormals."""
    row = torch.tensor(scores, dtype=torch.float64).sub(below).to(dtype).repeat(width)[:width]
    row = torch.stack([row, row.flip(0).abs()])  # one that is read by its bits beside one that may not be
    expected = row.float().argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(top(row, k), expected[:, :k])
    assert torch.equal(greedy(row.float().to(dtype)), expected[:, 0])


def test_a_tensor_that_asks_for_gradients_is_ranked_too() -> None:
    scores = torch.arange(2048.0).requires_grad_(True)
    assert (int(greedy(scores)), top(scores, 2).tolist()) == (2047, [2047, 2046])


@pytest.mark.parametrize(("width", "k"), [(5, 6), (2048, 2049), (2**20 + 1, 1)])
def test_more_than_there_is_or_than_a_key_holds_is_refused(width: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"the {k} largest of {width} scores"):
        top(torch.zeros(width), k)


@pytest.mark.parametrize("shape", [(2048,), (2, 3, 2048)])
def test_a_wide_row_may_stand_alone_or_among_several_dimensions(shape: tuple[int, ...]) -> None:
    scores = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(0)).float()
    expected = scores.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(top(scores, 5), expected[..., :5])
    assert torch.equal(greedy(scores), expected[..., 0])


def test_the_top_of_a_large_vocabulary_keeps_the_lowest_ids() -> None:
    assert top(torch.zeros(2**20), 2).tolist() == [0, 1]
    scores = torch.zeros(2, 200_000)
    scores[1, [7, 150_000, 199_999]] = torch.tensor([-1.0, 1.0, 1.0])
    assert top(scores, 4).tolist() == [[0, 1, 2, 3], [150_000, 199_999, 0, 1]]
