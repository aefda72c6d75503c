"""The fused runtime: the stock module's numbers from weights laid out anew, and a refusal for what it cannot drive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import Qwen3Config

from methods.common.errors import ConfigError
from methods.common.paths import CONF
from methods.decode.target import Target
from methods.loading.model import Source, load_model
from methods.runtime import fused
from methods.runtime.fused import can_pack, make_linear
from tests.support.families import MODELS, SHAPE, build, read, stirred
from tests.support.models import tiny_llama, tiny_model

CPU = torch.device("cpu")
CPU_FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-5), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_stock_modules(name: str, dtype: torch.dtype, bound: float) -> None:
    model = stirred(name, dtype)
    ours, theirs = read(Target(model, runtime="fused")), read(Target(model))
    assert (ours - theirs).abs().max() < bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_stock_layers_can_be_let_go(name: str, dtype: torch.dtype) -> None:
    model = stirred(name, dtype)
    target = Target(model, runtime="fused")
    before = read(target)
    target.release()
    assert torch.equal(read(target), before)
    held = {id(module) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    kept = [one for one in model.modules() if id(one) in held or one is model.base_model.norm]
    left = {id(weight) for one in kept for weight in one.parameters()}
    assert {id(weight) for weight in model.parameters() if not weight.is_meta} == left
    with pytest.raises(RuntimeError):
        model(torch.tensor([[1]]))


def test_on_the_stock_runtime_nothing_is_let_go() -> None:
    target = Target(build("llama", torch.float32))
    before = read(target)
    target.release()
    assert torch.equal(read(target), before)


def test_logits_on_real_weights_are_the_stock_modules() -> None:
    model = OmegaConf.load(CONF / "model" / "smollm2_135m.yaml")
    source = Source(model.kind, model.id, model.revision, model.file, model.sha256)
    loaded = load_model(source, device="cpu")
    # A text that means something: on the ids of special tokens rounding grows to a thousandth within thirty layers.
    text = loaded.tokenizer(
        "The river was high that spring, and the old bridge near the mill had been closed since March."
    )
    text = text["input_ids"]
    target = loaded.target
    ours, theirs = read(Target(target.model, runtime="fused"), text), read(target, text)
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


def test_a_mask_kept_from_a_cycle_before_hides_what_the_next_tree_hides() -> None:
    mask = fused._Mask(2)
    for length in (3, 200, 700, 5):
        for _ in range(2):
            tail = torch.rand(3, 3) > 0.5
            tail.fill_diagonal_(True)
            made = mask(tail, length, torch.float32)
            expected = torch.zeros(3, length)
            expected[:, length - 3 :].masked_fill_(~tail, -torch.inf)
            assert torch.equal(made, expected.repeat_interleave(2, 0))
            assert torch.equal(mask(tail, length + 1, torch.float32)[:, 1:], made)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_product_is_the_plain_one_packed_or_not(dtype: torch.dtype) -> None:
    weight, bias, rows = torch.randn(96, 64).to(dtype), torch.randn(96).to(dtype), torch.randn(5, 64).to(dtype)
    plain = nn.functional.linear(rows.double(), weight.double(), bias.double())
    with torch.inference_mode():
        for pack in (True, False):
            product = make_linear(weight, bias, pack=pack)
            assert ((product(rows) - plain).abs().max() / plain.abs().max()) < 4 * torch.finfo(dtype).eps * 64**0.5


def test_where_the_cpu_packs_it_is_packed() -> None:
    assert can_pack(torch.float32) or "avx512f" not in CPU_FLAGS
    assert can_pack(torch.bfloat16) or "avx512_bf16" not in CPU_FLAGS
    assert not can_pack(torch.float64)


def test_without_the_private_operators_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    can_pack.cache_clear()
    monkeypatch.setattr(fused, "_packed", missing)
    try:
        assert not can_pack(torch.float32)
        model = build("llama", torch.float32)
        assert (read(Target(model, runtime="fused")) - read(Target(model))).abs().max() < 1e-4
    finally:
        can_pack.cache_clear()


def test_an_architecture_it_does_not_know_is_refused() -> None:
    model = tiny_model(Qwen3Config(**SHAPE))
    with pytest.raises(ConfigError, match=r"runtime=fused drives Llama, Qwen2, Mistral, not Qwen3Model; use hf$"):
        Target(model, runtime="fused")


def test_projections_that_are_not_plain_weights_are_refused() -> None:
    model = tiny_llama(layers=1)
    model.model.layers[0].mlp.up_proj = nn.Sequential(model.model.layers[0].mlp.up_proj)
    with pytest.raises(ConfigError, match=r"needs plain weights, but layer 0.mlp.up_proj is a Sequential"):
        Target(model, runtime="fused")


def test_a_module_that_computes_something_else_is_refused() -> None:
    model = tiny_llama(layers=2)
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output * 1.01)
    with pytest.raises(ConfigError, match=r"fused gives other hidden states than LlamaForCausalLM itself"):
        Target(model, runtime="fused")


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^runtime=compiled is not known; choose hf, fused, graph"):
        Target(tiny_llama(layers=1), runtime="compiled")
