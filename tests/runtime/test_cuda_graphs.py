"""The graph runtime: what a bucket computes is tested everywhere, that it is recorded and replayed on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from methods.base import Drafter, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.decode.tree import from_list
from methods.loading.model import load_model
from methods.loading.sources import Source
from methods.runtime.cache import KVCache
from methods.runtime.cuda_graphs import Graphed
from tests.support.families import MODELS, read, stirred
from tests.support.matrix import EOS, MATRIX_VOCAB, NEW_TOKENS, SETTINGS, maker
from tests.support.models import random_prompts, run, tiny_llama

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a bucket runs each time instead of being replayed; the buffers and shapes are the same."""
    monkeypatch.setattr("methods.decode.target.refuse_without_gpu", lambda device: None)


def buckets(target: Target) -> dict[tuple[int, int], object]:
    layers = target._fused
    assert isinstance(layers, Graphed)
    return dict(layers._made[target.cache].buckets)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-5), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_stock_modules(name: str, dtype: torch.dtype, bound: float) -> None:
    model = stirred(name, dtype)
    ours, theirs = read(Target(model, runtime="graph")), read(Target(model))
    assert (ours - theirs).abs().max() < bound


@pytest.mark.usefixtures("anywhere")
@torch.inference_mode()
def test_a_text_that_outgrows_a_bucket_goes_on_in_the_next_and_needs_no_more_of_them() -> None:
    model = tiny_llama(layers=2, max_position_embeddings=1024)
    tree = from_list([-1, 0, 0, 1, 1, 2], torch.device("cpu"))
    logits = []
    for target in (Target(model), graph := Target(model, runtime="graph")):
        target.prefill(torch.arange(245) % 40, capacity=600)
        found = []
        for cycle in range(12):
            rows = 6 if cycle % 3 else 1
            tokens = (torch.arange(rows) * 7 + cycle) % 40
            hidden = target.forward(tokens, tree.depths[:rows], tree.mask[:rows, :rows])
            found.append(target.logits(hidden))
            target.cache.keep([0, 2, 5] if rows > 1 else [0])
        logits.append(torch.cat(found))
    assert (logits[0] - logits[1]).abs().max() < 1e-4
    assert set(buckets(graph)) == {(1, 256), (8, 256), (1, 512), (8, 512)}


@pytest.mark.usefixtures("anywhere")
def test_rows_that_pad_need_no_room() -> None:
    model = tiny_llama(layers=2, max_position_embeddings=1024)
    tree, states = from_list([-1, 0, 0, 1, 1, 2], torch.device("cpu")), []
    for target in (Target(model), Target(model, runtime="graph")):
        target.cache = KVCache(2)  # one that ends where the rows do, and not at the longest text
        target.prefill(torch.arange(250) % 40, capacity=256)
        assert target.cache.capacity == 256
        states.append(target.forward(torch.arange(6), tree.depths, tree.mask))
    assert torch.allclose(*states, atol=1e-5)


@pytest.mark.usefixtures("anywhere")
@torch.inference_mode()
def test_what_memory_held_before_does_not_reach_a_forward() -> None:
    target = Target(model := tiny_llama(layers=1), runtime="graph")
    six = (torch.arange(6), torch.arange(6), torch.ones(6, 6).bool().tril())
    two = tuple(one[:2] for one in six[:2])
    for text in (9, 5):  # the second time the bucket is there already
        if target.cache.is_initialized:
            for buffer in target.cache.buffers(0):
                buffer[:] = torch.nan
        target.prefill(torch.arange(text), capacity=100)
        assert torch.isfinite(target.forward(*six)).all()
    target.cache.keep([0])
    for buffer in target.cache.buffers(0):  # rejected rows that overflowed
        buffer[:, :, target.cache.length : target.cache.length + 5] = torch.nan
    ours = target.forward(*two, six[2][:2, :2])
    other = Target(model)
    other.prefill(torch.tensor([*range(5), 0]), capacity=100)
    assert torch.allclose(ours, other.forward(*two, six[2][:2, :2]), atol=1e-5)


@pytest.mark.usefixtures("anywhere")
@torch.inference_mode()
def test_states_outlive_the_next_forward() -> None:
    target = Target(tiny_llama(layers=1), runtime="graph")
    target.prefill(torch.arange(9), capacity=100)
    first = target.forward(torch.tensor([3]), torch.tensor([0]), torch.ones(1, 1).bool())
    copy = first.clone()
    target.forward(torch.tensor([5]), torch.tensor([0]), torch.ones(1, 1).bool())
    assert torch.equal(first, copy)


@pytest.mark.usefixtures("anywhere")
@torch.inference_mode()
def test_another_allocation_of_the_cache_is_written_and_the_old_one_is_let_go() -> None:
    target = Target(model := tiny_llama(layers=1), runtime="graph")
    other, row, old = Target(model), (torch.tensor([3]), torch.tensor([0]), torch.ones(1, 1).bool()), []
    for capacity in (100, 4000):  # the first holds the longest text, the second is more than that
        for one in (target, other):
            one.prefill(torch.arange(9), capacity=capacity)
        assert torch.allclose(target.forward(*row), expected := other.forward(*row), atol=1e-5)
        gc.collect()
        assert all(each() is None for each in old)
        old = [weakref.ref(target.cache.buffers(0)[0]), weakref.ref(buckets(target)[1, 256])]
    mine, target.cache = target.cache, target.new_cache()
    target.prefill(torch.arange(5), capacity=100)
    target.forward(*row)
    target.cache = mine
    assert torch.allclose(target.forward(*row), expected, atol=1e-5)


@pytest.mark.usefixtures("anywhere")
def test_a_cache_holds_the_longest_text_from_the_start() -> None:
    target = Target(tiny_llama(layers=1), runtime="graph")
    target.prefill(torch.arange(9), capacity=20)
    keys = target.cache.buffers(0)[0]
    target.prefill(torch.arange(200) % 40, capacity=target.context + 64)
    assert target.cache.buffers(0)[0] is keys
    assert Target(tiny_llama(layers=1)).new_cache()._least == 0


@pytest.mark.usefixtures("anywhere")
def test_rows_that_do_not_fit_are_refused_as_by_the_cache() -> None:
    target = Target(tiny_llama(layers=1), runtime="graph")
    target.prefill(torch.arange(9), capacity=20)
    target.cache.length = target.cache.capacity
    with pytest.raises(IndexError, match=r"cache of 512 rows cannot take rows up to 513"):
        target.forward(torch.tensor([3]), torch.tensor([0]), torch.ones(1, 1).bool())


@pytest.fixture(scope="module")
def plain() -> Target:
    return Target(tiny_llama(torch.float64, layers=2, vocab_size=MATRIX_VOCAB))


@pytest.fixture(scope="module")
def made(plain: Target, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Drafter]:
    return maker(plain, tmp_path_factory)


@pytest.mark.usefixtures("unchecked_shapes", "anywhere")
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_decodes_as_on_the_stock_module(
    plain: Target, made: Callable[[str, str, Target], Drafter], monkeypatch: pytest.MonkeyPatch, name: str, device: str
) -> None:
    """Text, and every cycle of it, drafts of the heads' own layers included."""
    # The draft of sps is loaded by its own; there the device is asked before anything is.
    monkeypatch.setattr("methods.loading.model.refuse_without_gpu", lambda device: None)
    target = Target(tiny_llama(torch.float64, layers=2, vocab_size=MATRIX_VOCAB).to(device), runtime="graph")
    for index, setting in enumerate(SETTINGS[name]):
        ours, theirs = made(name, setting, target), made(name, setting, plain)
        for number, prompt in enumerate(random_prompts(4, vocab=MATRIX_VOCAB, seed=index)):
            request = Request(prompt, NEW_TOKENS, frozenset({EOS}), Sampling(float(number % 2)), f"{number}")
            assert run(target, ours, request) == run(plain, theirs, request), (setting, number)


def test_without_a_gpu_it_is_refused_before_anything_loads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^runtime=graph needs a CUDA device, not cpu; use fused$"):
        load_model(Source("folder", str(tmp_path / "nothing")), device="cpu", runtime="graph")
    with pytest.raises(ConfigError, match=r"^runtime=graph needs a CUDA device, not cpu"):
        Target(tiny_llama(layers=1), runtime="graph")


@pytest.mark.gpu
@NEEDS_GPU
@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)], ids=str)
def test_a_recorded_forward_is_the_fused_one(dtype: torch.dtype, bound: float) -> None:
    model = tiny_llama(dtype, layers=3).to("cuda")
    states = []
    for runtime in ("fused", "graph"):
        target = Target(model, runtime=runtime)
        tree = from_list([-1, 0, 0, 1, 1, 2], target.device)
        target.prefill(torch.arange(20, device="cuda"), capacity=300)
        for cycle in range(4):  # the first records, the others replay with other inputs
            states.append(target.forward(torch.arange(6, device="cuda") + cycle, tree.depths, tree.mask))
            target.cache.keep([0, 2, 5])
    fused, graph = torch.stack(states).chunk(2)
    assert ((fused - graph).norm(dim=-1) / fused.norm(dim=-1)).max() < bound
    assert set(buckets(target)) == {(8, 256)}


@pytest.mark.gpu
@NEEDS_GPU
@torch.inference_mode()
def test_graphs_of_one_stack_replay_after_anothers_were_let_go() -> None:
    """As when the cache of a target grows and the one of its head does not."""
    model = tiny_llama(torch.float32, layers=2).to("cuda")
    kept, grows, plain = Target(model, runtime="graph"), Target(model, runtime="graph"), Target(model, runtime="fused")
    tree = from_list([-1, 0, 0, 1, 1, 2], kept.device)
    for target in (kept, grows, plain):
        target.prefill(torch.arange(20, device="cuda"), capacity=300)
        target.forward(torch.arange(6, device="cuda"), tree.depths, tree.mask)
    for capacity in (2000, 4000, 8000):
        grows.prefill(torch.arange(20, device="cuda"), capacity=capacity)
        grows.forward(torch.arange(6, device="cuda"), tree.depths, tree.mask)
        torch.cuda.empty_cache()
        states = [one.forward(torch.arange(6, device="cuda") + 3, tree.depths, tree.mask) for one in (kept, plain)]
        assert torch.allclose(*states, atol=1e-4)
