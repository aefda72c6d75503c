"""The key/value cache against a plain Python list of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from methods.runtime.cache import KVCache

LAYERS, HEADS = 3, 2


SHAPES = {
    "alike": [(4, 4), (4, 4), (4, 4)],
    "the last differs": [(4, 4), (4, 4), (4, 5)],
    "the first differs": [(4, 5), (4, 4), (4, 4)],
    "in key size": [(4, 4), (6, 6), (4, 4)],
}
"""Head size of keys and values, layer by layer."""


def fresh_rows(count: int, random: torch.Generator, shapes: list[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
    """New keys and values of one forward, a pair per layer."""
    return [
        (
            torch.randn(1, HEADS, count, key_dim, generator=random),
            torch.randn(1, HEADS, count, value_dim, generator=random),
        )
        for key_dim, value_dim in shapes
    ]


@st.composite
def forwards(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Forwards as (rows, rows kept): root first and ascending, as an accepted path is."""
    plan = []
    for _ in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(1, 9))
        kept = draw(st.lists(st.integers(1, rows - 1), unique=True).map(sorted)) if rows > 1 else []
        plan.append((rows, [0, *kept]))
    return plan


@given(forwards(), st.integers(0, 99), st.sampled_from(list(SHAPES)), st.booleans())
def test_the_cache_is_the_list_of_all_rows_ever_kept(
    plan: list[tuple[int, list[int]]], seed: int, shapes: str, together: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    cache = KVCache(LAYERS, together=together)
    cache.reset(60)
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(LAYERS)]
    for rows, path in plan:
        new = fresh_rows(rows, random, SHAPES[shapes])
        for layer, (keys, values) in enumerate(new):
            seen_keys, seen_values = cache.update(keys, values, layer)
            pairs = [*kept[layer], *((keys[0, :, row], values[0, :, row]) for row in range(rows))]
            assert torch.equal(seen_keys[0], torch.stack([key for key, _ in pairs], 1))
            assert torch.equal(seen_values[0], torch.stack([value for _, value in pairs], 1))
            kept[layer] += [(keys[0, :, row], values[0, :, row]) for row in path]
        cache.keep(path)
        assert cache.length == len(kept[0])
        for layer in range(LAYERS):
            keys, values = cache.rows(layer)
            assert torch.equal(keys, torch.stack([key for key, _ in kept[layer]], 1))
            assert torch.equal(values, torch.stack([value for _, value in kept[layer]], 1))


def test_the_cache_tells_transformers_how_long_the_text_is() -> None:
    cache = KVCache(1)
    cache.reset(8)
    assert not cache.is_initialized
    cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    cache.keep([0, 1, 2])
    assert cache.is_initialized
    assert cache.get_seq_length() == cache.get_query_offset() == 3
    assert cache.get_mask_sizes(2) == cache.get_mask_sizes(torch.arange(2)) == (5, 0)
    assert cache.is_sliding == [False]


def test_rows_that_do_not_fit_are_refused_and_the_last_place_is_usable() -> None:
    cache = KVCache(1)
    cache.reset(1)
    full = torch.zeros(1, 1, cache.capacity, 2)
    cache.update(full, full, 0)
    cache.keep(range(cache.capacity))
    with pytest.raises(IndexError, match="cannot take rows"):
        cache.update(full[:, :, :1], full[:, :, :1], 0)


def test_a_reset_forgets_the_text_and_reuses_the_memory_unless_it_must_grow() -> None:
    cache = KVCache(1)
    cache.reset(10)
    rows = torch.ones(1, 1, 10, 2)
    first, _ = cache.update(rows, rows, 0)
    cache.keep(range(10))

    cache.reset(5)
    assert cache.length == 0
    assert cache.rows(0)[0].shape[1] == 0
    again, _ = cache.update(rows[:, :, :1], rows[:, :, :1], 0)
    assert again.shape[2] == 1
    assert again.data_ptr() == first.data_ptr()

    cache.reset(cache.capacity + 1)
    assert not cache.is_initialized
    wide = torch.ones(1, 1, cache.capacity, 2)
    assert cache.update(wide, wide, 0)[0].shape[2] == cache.capacity


def test_a_cache_that_was_never_reset_has_no_room() -> None:
    with pytest.raises(IndexError, match="cache of 0 rows cannot take rows up to 1"):
        KVCache(1).update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), 0)


@pytest.mark.parametrize(("shapes", "pools"), [("alike", 1), ("the last differs", 3), ("the first differs", 6)])
def test_layers_that_are_alike_share_one_buffer_so_that_one_gather_keeps_a_path(shapes: str, pools: int) -> None:
    cache = KVCache(LAYERS)
    cache.reset(9)
    for texts in (1, 2):  # another batch gets buffers of its own, as the first did
        made = []
        for layer, rows in enumerate(fresh_rows(3, torch.Generator().manual_seed(0), SHAPES[shapes])):
            seen = cache.update(*(each.expand(texts, -1, -1, -1) for each in rows), layer)
            made += [each.untyped_storage().data_ptr() for each in seen]
        assert len(set(made)) == pools


class Uploads(TorchFunctionMode):
    """The lists that were made into tensors. No patched ``torch.tensor``: ``torch.device("meta")``, entered for the
    first time, would take that for torch's own ever after, and models loaded later get RoPE tables nobody wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[list[int]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.tensor:
            self.made.append(args[0])
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("together", [True, False])
def test_a_path_is_uploaded_once_and_not_once_a_layer(together: bool) -> None:
    cache = KVCache(LAYERS, together=together)
    cache.reset(9)
    new = fresh_rows(3, torch.Generator().manual_seed(0), SHAPES["alike"])
    for layer, rows in enumerate(new):
        cache.update(*rows, layer)
    # Whatever names no device is made on meta there, and a gather by it gives memory nobody wrote, without an error.
    with torch.device("meta"), Uploads() as uploads:
        cache.keep([0, 2])
    for layer, pair in enumerate(new):
        assert all(torch.equal(kept, one[0][:, [0, 2]]) for kept, one in zip(cache.rows(layer), pair, strict=True))
    assert uploads.made == [[0, 2]]
    with Uploads() as uploads:
        cache.keep([0, 1])
    assert not uploads.made, "a path without a gap lies where it should"


@pytest.mark.parametrize(("asked", "made"), [(1, 256), (256, 256), (257, 512), (512, 512)])
def test_capacity_comes_in_whole_steps_so_that_turns_of_like_length_share_an_allocation(asked: int, made: int) -> None:
    cache = KVCache(1)
    cache.reset(asked)
    assert cache.capacity == made
