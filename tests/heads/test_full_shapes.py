"""Every model of the paper at its full shape, without its weights: headers are real, the bodies are holes in the disk.

A folder in hub layout passes the check that a run makes before anything loads, for the target and each head that the
configuration names; a wrong one of each kind is refused by what is wrong with it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig

import methods
from bench.plan.config import setup_of
from methods.common.errors import ConfigError
from methods.common.paths import CONF
from methods.loading.model import Source, outline
from methods.loading.model_header import Outline
from methods.loading.tensor_files import read_tensors, shapes_of
from tests.support import heads
from tests.support.heads import Shapes

COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = {
    # as in the config.json of each target
    "vicuna7b": (4096, 11008, 32, 32, 32),
    "vicuna13b": (5120, 13824, 40, 40, 40),
    "vicuna33b": (6656, 17920, 60, 52, 52),
    "llama2chat7b": (4096, 11008, 32, 32, 32),
    "llama2chat13b": (5120, 13824, 40, 40, 40),
    "llama2chat70b": (8192, 28672, 80, 64, 8),
    "llama3instruct8b": (4096, 14336, 32, 32, 8),
    "llama3instruct70b": (8192, 28672, 80, 64, 8),
}
VICUNA_68M = (768, 3072, 2, 12, 12)
DRAFTS = {"llama2chat70b": "llama2chat7b", "llama3instruct70b": "llama3instruct8b"}
FILES = {"eagle": "pytorch_model", "eagle2": "pytorch_model", "medusa": "medusa_lm_head", "hydra": "hydra_lm_head"}


def facts(name: str, sizes: tuple[int, ...] | None = None) -> dict[str, Any]:
    """A target's config.json, as far as shapes depend on it."""
    vocabulary = 128256 if name.startswith("llama3") else 32000
    shape = dict(zip(COLUMNS, sizes or SIZES[name], strict=True))
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary, **shape}


def outlined(name: str) -> Outline:
    return Outline(LlamaConfig(**facts(name)))


def tensors_of_llama(config: dict[str, Any], *, frequencies: bool) -> Shapes:
    """Key for key as in a published file. Those of Vicuna and LLaMA2 carry the rotary frequencies of every layer."""
    hidden, inner, layers, attention, keys = (config[column] for column in COLUMNS)
    narrow = hidden // attention * keys
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (narrow, hidden) for name in "kv"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        if frequencies:
            shapes[f"{prefix}self_attn.rotary_emb.inv_freq"] = (hidden // attention // 2,)
    return shapes | {"lm_head.weight": (config["vocab_size"], hidden)}


def hollow(path: Path, shapes: Shapes) -> Path:
    """A float16 safetensors file whose header is true and whose body takes no room."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
    assert path.stat().st_blocks * 512 < 1 << 20, "this file system has no holes"
    return path


def folder_of(folder: Path, config: dict[str, Any], shapes: Shapes, shards: int = 3) -> Path:
    """A target in hub layout, its tensors dealt out over shards."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    weight_map = {name: names[number % shards] for number, name in enumerate(shapes)}
    for file in names:
        hollow(folder / file, {name: shape for name, shape in shapes.items() if weight_map[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def target_folder(folder: Path, name: str, sizes: tuple[int, ...] | None = None) -> Path:
    config = facts(name, sizes)
    return folder_of(folder, config, tensors_of_llama(config, frequencies=not name.startswith("llama3")))


def head_folder(folder: Path, method: str, shapes: Shapes, config: dict[str, Any] | None = None) -> Path:
    hollow(folder / f"{FILES[method]}.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


def published(folder: Path, method: str, name: str) -> Path:
    """A head as it is published for this model."""
    if method == "sps":
        draft = DRAFTS.get(name)
        return target_folder(folder, draft) if draft else target_folder(folder, name, VICUNA_68M)
    target = outlined(name)
    if method == "medusa":
        return head_folder(folder, method, heads.medusa(target), {"medusa_num_heads": 2})
    if method == "hydra":
        return head_folder(folder, method, heads.hydra(target))
    return head_folder(folder, method, *heads.eagle(target, bias=not name.startswith("llama3")))


def configured(name: str) -> dict[str, dict[str, Any]]:
    """Every method's settings for a model, as its YAML and the methods' give them."""
    everything = f"method=[{','.join(name for name in methods._BUILT_IN if name != 'vanilla')}]"
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        config = hydra.compose("config", overrides=[f"model={name}", everything])
    OmegaConf.resolve(config)
    return setup_of(config).methods


@pytest.mark.parametrize("name", SIZES)
def test_a_target_and_each_of_its_heads_pass_before_anything_loads(name: str, tmp_path: Path) -> None:
    target = outline(Source("folder", str(target_folder(tmp_path / "target", name))))
    assert (target.hidden, target.vocab) == (SIZES[name][0], facts(name)["vocab_size"])
    checked = []
    for method, knobs in configured(name).items():
        if knobs.get("weights", ""):
            folder = published(tmp_path / method, method, name)
            methods.check(method, {**knobs, "weights": str(folder)}, target)
            checked.append(method)
    vicuna = ["sps", "medusa", "hydra", "eagle", "eagle2"]
    assert checked == (vicuna if name.startswith("vicuna") else [*["sps"] * (name in DRAFTS), "eagle", "eagle2"])


def without(shapes: Shapes, name: str) -> Shapes:
    assert name in shapes
    return {key: shape for key, shape in shapes.items() if key != name}


def reshaped(shapes: Shapes, **changes: tuple[int, ...]) -> Shapes:
    return shapes | {name.replace("__", "."): shape for name, shape in changes.items()}


def eagle_3(folder: Path) -> Path:
    shapes, config = heads.eagle(outlined("vicuna7b"))
    layer = {name.replace("layers.0", "midlayer"): shape for name, shape in shapes.items() if "embed" not in name}
    return head_folder(folder, "eagle", layer | {"d2t": (32000,), "t2d": (32000,)}, config)


def with_added_tokens(folder: Path) -> Path:
    """A head for a fine-tune that added tokens, as many around Vicuna v1.5 did."""
    config = LlamaConfig(**facts("vicuna7b") | {"vocab_size": 32001})
    return head_folder(folder, "eagle", *heads.eagle(Outline(config)))


def bias_not_declared(folder: Path) -> Path:
    shapes, config = heads.eagle(outlined("vicuna7b"), bias=False)
    return head_folder(folder, "eagle", shapes, {key: value for key, value in config.items() if key != "bias"})


def bias_denied(folder: Path) -> Path:
    shapes, config = heads.eagle(outlined("vicuna7b"))
    return head_folder(folder, "eagle", shapes, config | {"bias": False})


def with_input_norm(folder: Path) -> Path:
    shapes, config = heads.eagle(outlined("vicuna7b"))
    return head_folder(folder, "eagle", shapes | {"layers.0.input_layernorm.weight": (4096,)}, config)


WRONG: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "an EAGLE-3 head": ("eagle2", eagle_3, "is not a eagle2 head for this model: it is an EAGLE-3 head"),
    "another vocabulary": ("eagle", with_added_tokens, "4096 and 32001 tokens, the target has 4096 and 32000"),
    "a larger model's head": (
        "eagle", lambda folder: published(folder, "eagle", "vicuna13b"), "made for hidden size 5120",
    ),
    "no bias and no flag": ("eagle2", bias_not_declared, "config.json says bias=True, but fc.bias is missing"),
    "a bias and a flag against it": ("eagle2", bias_denied, "config.json says bias=False, but fc.bias is there"),
    "an input norm": ("eagle", with_input_norm, "unexpected layers.0.input_layernorm.weight"),
    "Medusa-2": (
        "medusa",
        lambda folder: head_folder(folder, "medusa", heads.medusa(outlined("vicuna7b")) | {"lm_head.weight": (2, 2)}),
        "Medusa-2",
    ),
    "Medusa for 13B": (
        "medusa",
        lambda folder: published(folder, "medusa", "vicuna13b"),
        "0.0.linear.weight has shape [5120, 5120], the target needs [4096, 4096]",
    ),
    "Hydra without a norm": (
        "hydra",
        lambda folder: head_folder(
            folder, "hydra", without(heads.hydra(outlined("vicuna7b")), "prefix_embeding_layer.norm.weight")
        ),
        "missing prefix_embeding_layer.norm.weight",
    ),
    "Hydra for 13B": ("hydra", lambda folder: published(folder, "hydra", "vicuna13b"), "has shape [5120, 10240]"),
    "a draft model that lacks a layer": (
        "sps",
        lambda folder: folder_of(
            folder,
            facts("vicuna7b", VICUNA_68M),
            tensors_of_llama(facts("vicuna7b", (768, 3072, 1, 12, 12)), frequencies=True),
        ),
        "weights: id=",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_head_is_refused_by_what_is_wrong(kind: str, tmp_path: Path) -> None:
    method, write, expected = WRONG[kind]
    with pytest.raises(ConfigError) as refused:
        methods.check(method, {"weights": str(write(tmp_path))}, outlined("vicuna7b"))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


FULL = tensors_of_llama(facts("vicuna7b"), frequencies=True)
WRONG_TARGETS = {
    "a shard of another model": (
        reshaped(FULL, model__norm__weight=(5120,)), "model.norm.weight has shape [5120], its config needs [4096]",
    ),
    "a layer fewer": (
        {name: shape for name, shape in FULL.items() if ".layers.31." not in name},
        "missing model.layers.31.input_layernorm.weight, model.layers.31.mlp.down_proj.weight, ",
    ),
    "more than a Llama": (FULL | {"score.weight": (2, 4096)}, "unexpected score.weight"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_TARGETS)
def test_a_wrong_target_is_refused_by_what_is_wrong(kind: str, tmp_path: Path) -> None:
    shapes, expected = WRONG_TARGETS[kind]
    folder_of(tmp_path, facts("vicuna7b"), shapes)
    with pytest.raises(ConfigError) as refused:
        outline(Source("folder", str(tmp_path)))
    said = str(refused.value)
    assert said.startswith(f"id={tmp_path} lacks the weights that its config.json describes: ")
    assert expected in said
    assert "\n" not in said


def test_a_pickle_s_shapes_are_known_without_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(3, 5), "b": torch.ones(2).half()}, path)
    assert shapes_of(path) == {"a": (3, 5), "b": (2,)}
    assert {name: tuple(tensor.shape) for name, tensor in read_tensors(path).items()} == shapes_of(path)


def test_a_truncated_file_is_refused_by_name(tmp_path: Path) -> None:
    path = hollow(tmp_path / "model.safetensors", {"a": (3, 5)})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read as weights: "):
        shapes_of(path)
