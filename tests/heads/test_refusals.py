"""Weights that do not belong to a method or a target are refused before anything is decoded, in one line that helps.

The references load with ``strict=False``: there every case below drafts garbage, or runs a stranger's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import methods
from methods.common.errors import ConfigError
from methods.decode.target import Target
from tests.support.heads import write_eagle, write_hydra, write_medusa
from tests.support.models import tiny_llama

VOCAB = 12
KNOBS: dict[str, dict[str, Any]] = {
    "eagle": {"tree": "2 | 0:2"},
    "eagle2": {"total_tokens": 6, "depth": 2, "top_k": 3},
    "medusa": {"tree": "2 | 0:2"},
    "hydra": {"tree": "2 | 0:2"},
    "sps": {},
}
FILES = {
    "eagle": "pytorch_model.bin",
    "eagle2": "pytorch_model.bin",
    "medusa": "medusa_lm_head.pt",
    "hydra": "hydra_lm_head.pt",
    "sps": "model.safetensors",
}
WRITERS: dict[str, Callable[..., Path]] = {
    "eagle": write_eagle,
    "eagle2": write_eagle,
    "medusa": write_medusa,
    "hydra": write_hydra,
}
HEADS = list(WRITERS)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=1, vocab_size=VOCAB))


def refusal(method: str, weights: Any, target: Target, tokenizer: Any = None, **knobs: Any) -> str:
    """What the user reads. One line, whatever went wrong."""
    with pytest.raises(ConfigError) as refused:
        methods.load(method, {"weights": weights, **KNOBS[method], **knobs}, target, tokenizer)
    said = str(refused.value)
    assert "\n" not in said
    return said


def edited(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """A head's folder after a change to its tensors."""
    tensors = torch.load(path, weights_only=True)
    change(tensors)
    torch.save(tensors, path)
    return path.parent


A_TENSOR = {
    "eagle": "layers.0.mlp.up_proj.weight",
    "eagle2": "layers.0.self_attn.k_proj.weight",
    "medusa": "2.0.linear.bias",
    "hydra": "prefix_embeding_layer.layers.0.self_attn.k_proj.weight",
}


@pytest.mark.parametrize("method", HEADS)
def test_a_missing_tensor_is_named(target: Target, tmp_path: Path, method: str) -> None:
    folder = WRITERS[method](tmp_path, target)
    edited(folder / FILES[method], lambda tensors: tensors.pop(A_TENSOR[method]))
    said = refusal(method, str(folder), target)
    assert f"{folder / FILES[method]} is not a {method} head for this model: missing {A_TENSOR[method]}" in said


@pytest.mark.parametrize("method", HEADS)
def test_a_tensor_too_many_is_named(target: Target, tmp_path: Path, method: str) -> None:
    extra = {"eagle": "lm_head.weight", "eagle2": "layers.0.input_layernorm.weight"}.get(method, "extra.weight")
    folder = WRITERS[method](tmp_path, target)
    edited(folder / FILES[method], lambda tensors: tensors.update({extra: torch.zeros(2)}))
    assert f"unexpected {extra}" in refusal(method, str(folder), target)


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize(
    ("changes", "theirs", "ours"),
    [({"hidden_size": 48, "intermediate_size": 64}, "48", "32"), ({"vocab_size": VOCAB + 1}, "13", "12")],
    ids=["hidden size", "vocabulary"],
)
def test_a_head_of_another_model_is_told_by_its_sizes(
    target: Target, tmp_path: Path, method: str, changes: dict[str, int], theirs: str, ours: str
) -> None:
    other = Target(tiny_llama(layers=1, **{"vocab_size": VOCAB} | changes))
    folder = WRITERS[method](tmp_path, other)
    said = refusal(method, str(folder), target)
    assert f"is not a {method} head for this model" in said
    assert method not in ("eagle", "eagle2") or "it was made for hidden size" in said
    assert theirs in said.removeprefix(str(folder))
    assert ours in said.removeprefix(str(folder))


def test_item_1_sizes_are_checked_in_the_tensors_as_well_as_in_the_config(target: Target, tmp_path: Path) -> None:
    folder = write_eagle(tmp_path, target)
    edited(folder / FILES["eagle"], lambda tensors: tensors.update({"fc.weight": torch.zeros(32, 32)}))
    assert "fc.weight has shape [32, 32], the target needs [32, 64]" in refusal("eagle", str(folder), target)


@pytest.mark.parametrize("key", ["midlayer.self_attn.q_proj.weight", "d2t", "t2d"])
def test_a_head_of_eagle_3_is_called_by_its_name(target: Target, tmp_path: Path, key: str) -> None:
    folder = write_eagle(tmp_path, target)
    new = {key: torch.zeros(2), "fc.weight": torch.zeros(32, 96), "norm.weight": torch.zeros(32)}
    edited(folder / FILES["eagle2"], lambda tensors: tensors.update(new))
    said = refusal("eagle2", str(folder), target)
    assert "it is an EAGLE-3 head, another architecture; use an EAGLE-1/2 head (yuhuili/EAGLE-...)" in said


@pytest.mark.parametrize(("there", "declared", "word"), [(True, False, "there"), (False, True, "missing")])
def test_item_1_a_bias_that_the_config_denies_or_promises_is_a_contradiction(
    target: Target, tmp_path: Path, there: bool, declared: bool, word: str
) -> None:
    folder = write_eagle(tmp_path, target, bias=there)
    facts = json.loads((folder / "config.json").read_text()) | {"bias": declared}
    (folder / "config.json").write_text(json.dumps(facts))
    assert f"config.json says bias={declared}, but fc.bias is {word}" in refusal("eagle", str(folder), target)
    del facts["bias"]  # silence means that there is one, as in the heads for Vicuna
    (folder / "config.json").write_text(json.dumps(facts))
    if there:
        methods.load("eagle", {"weights": str(folder)}, target)
    else:
        assert "says bias=True, but fc.bias is missing" in refusal("eagle", str(folder), target)


def test_an_eagle_head_without_its_config_is_refused(target: Target, tmp_path: Path) -> None:
    folder = write_eagle(tmp_path, target)
    (folder / "config.json").unlink()
    assert "no config.json, which says its heads, RoPE base" in refusal("eagle", str(folder), target)
    (folder / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal("eagle", str(folder), target)


def test_heads_with_a_tuned_backbone_are_another_target(target: Target, tmp_path: Path) -> None:
    folder = write_medusa(tmp_path, target)
    backbone = {"base_model.model.layers.0.self_attn.q_proj.weight": torch.zeros(32, 32)}
    edited(folder / FILES["medusa"], lambda tensors: tensors.update(backbone))
    assert "tuned backbone (Medusa-2), which is another target; use Medusa-1" in refusal("medusa", str(folder), target)


@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize(("prefix", "key"), [(True, "hydra_mlp.2.5.linear"), (False, "hydra_mlp.0.3.linear")])
def test_three_blocks_that_differ_are_not_hydras_shared_one(
    target: Target, tmp_path: Path, prefix: bool, key: str, part: str
) -> None:
    folder = write_hydra(tmp_path, target, prefix=prefix)
    edited(folder / FILES["hydra"], lambda tensors: tensors.update({f"{key}.{part}": tensors[f"{key}.{part}"] + 1}))
    said = refusal("hydra", str(folder), target)
    assert f"head {key.split('.')[1]} stores three different blocks where Hydra shares one" in said


@pytest.mark.parametrize("method", KNOBS)
def test_weights_that_are_not_there_are_asked_for_by_their_setting(target: Target, tmp_path: Path, method: str) -> None:
    said = refusal(method, None, target)
    assert said == f"weights=None, but {method} drafts with weights of its own; give a folder or a hub id"
    assert str(tmp_path / "nowhere") in refusal(method, str(tmp_path / "nowhere"), target)
    said = refusal(method, str(tmp_path), target)
    assert str(tmp_path) in said
    assert FILES[method] in said or (method == "sps" and "config.json" in said)


@pytest.mark.parametrize("weights", ["nowhere", "empty"])
def test_a_draft_model_that_is_not_there_is_not_called_the_target(target: Target, tmp_path: Path, weights: str) -> None:
    (tmp_path / "empty").mkdir()
    said = refusal("sps", str(tmp_path / weights), target)
    assert said.startswith("weights: ")  # and not "id", which would be the target's


@pytest.mark.parametrize("weights", [{"folder": "x"}, 3, ["x"], {"kind": "zip", "id": "x"}], ids=str)
def test_weights_of_no_known_form_are_refused(target: Target, weights: Any) -> None:
    assert "hub" in refusal("medusa", weights, target)


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("left", [4, 100, 0.9])
def test_a_truncated_file_is_refused(target: Target, tmp_path: Path, method: str, left: float) -> None:
    folder = WRITERS[method](tmp_path, target)
    pickled, safe = folder / FILES[method], (folder / FILES[method]).with_suffix(".safetensors")
    tensors = {name: tensor.clone() for name, tensor in torch.load(pickled, weights_only=True).items()}
    save_file(tensors, safe)
    for path in (safe, pickled):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(left * len(whole)) if left < 1 else int(left)])
        assert f"{path} cannot be read as weights: " in refusal(method, str(folder), target)
        if path == safe:
            safe.unlink()


HUGE = {
    "pld": {"num_draft": 10**9},
    "pld's n-grams": {"max_ngram": 10**9},
    "lookahead": {"window": 10**6},
    "lookahead's guesses": {"guesses": 10**9},
    "eagle2": {"total_tokens": 10**9, "top_k": 10**5},
    "eagle2's depth": {"depth": 10**9},
    "eagle": {"tree": "999999999 | 0:1"},
    "medusa": {"tree": f"{'9' * 400} | 0:1"},
    "hydra": {"tree": "5000 | 0:1"},
    "sps": {"num_draft": 10**6},
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_draft_that_no_cache_could_hold_is_refused_before_any_weight_is_read(
    target: Target, tmp_path: Path, kind: str
) -> None:
    method = kind.split("'")[0]
    weights = {"weights": str(WRITERS[method](tmp_path, target))} if method in WRITERS else {}
    with pytest.raises(ConfigError, match=r"4096|64") as refused:
        methods.load(method, {**weights, **HUGE[kind]}, target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["eagle", "medusa", "hydra"])
@pytest.mark.parametrize(("tree", "said"), [("13 | 0:1", "13"), ("2 | 5:1", "'5:1' gives children")])
def test_a_tree_that_cannot_be_drafted_is_refused(
    target: Target, tmp_path: Path, method: str, tree: str, said: str
) -> None:
    """Wider than the vocabulary of 12, or not a tree."""
    folder = WRITERS[method](tmp_path, target)
    assert said in refusal(method, str(folder), target, tree=tree)
