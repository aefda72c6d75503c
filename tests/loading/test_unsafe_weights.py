"""A pickle from the hub is a stranger's program: nothing in it may run, and only tensors come out of it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import methods
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.loading.model import Source, load_model
from tests.support.heads import word_tokenizer, write_eagle, write_hydra, write_medusa
from tests.support.models import tiny_llama
from tests.support.pickles import Touches, plain

VOCAB = 12
HEADS: list[tuple[str, str, Callable[..., Path]]] = [
    ("eagle", "pytorch_model.bin", write_eagle),
    ("eagle2", "pytorch_model.bin", write_eagle),
    ("medusa", "medusa_lm_head.pt", write_medusa),
    ("hydra", "hydra_lm_head.pt", write_hydra),
]


def old(thing: Any, path: Path) -> None:
    torch.save(thing, path, _use_new_zipfile_serialization=False)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=1, vocab_size=VOCAB))


def refusal(method: str, folder: Path, target: Target) -> str:
    with pytest.raises(ConfigError) as refused:
        methods.load(method, {"weights": str(folder)}, target)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("save", [torch.save, plain, old], ids=["zip", "plain pickle", "old format"])
@pytest.mark.parametrize(("method", "file", "write"), HEADS, ids=[head[0] for head in HEADS])
def test_a_pickle_that_would_touch_a_file_runs_nothing(
    target: Target, tmp_path: Path, method: str, file: str, write: Any, save: Callable[[Any, Path], None]
) -> None:
    folder = write(tmp_path / "head", target)
    tensors = torch.load(folder / file, weights_only=True)
    save(tensors | {"payload": Touches(tmp_path / "touched")}, folder / file)
    assert f"{folder / file} cannot be read as weights: " in refusal(method, folder, target)
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_the_pickle_of_these_tests_does_run_when_it_is_trusted(tmp_path: Path) -> None:
    plain(Touches(tmp_path / "touched"), tmp_path / "file")
    pickle.loads((tmp_path / "file").read_bytes())
    assert (tmp_path / "touched").is_dir()


@pytest.mark.parametrize(
    "thing",
    [{"fc.weight": torch.zeros(2), "step": 3}, {"model": {"fc.weight": torch.zeros(2)}}, [torch.zeros(2)], "weights"],
    ids=["a number beside", "tensors one level down", "a list", "a word"],
)
@pytest.mark.parametrize(("method", "file"), [head[:2] for head in HEADS[1:]])
def test_a_file_that_holds_more_than_named_tensors_is_refused(
    target: Target, tmp_path: Path, method: str, file: str, thing: Any
) -> None:
    torch.save(thing, tmp_path / file)
    said = refusal(method, tmp_path, target)
    assert f"{file} holds more than named tensors; where it was made, save its state_dict() alone" in said


def test_a_pickled_draft_model_is_read_and_what_else_is_in_it_runs_nothing(target: Target, tmp_path: Path) -> None:
    folder, tokenizer = tmp_path / "draft", word_tokenizer(VOCAB)
    target.model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.save(target.model.state_dict(), folder / "pytorch_model.bin")
    drafter = methods.load("sps", {"weights": str(folder)}, target, tokenizer)
    assert torch.equal(drafter.draft.embedding, target.embedding)
    torch.save(target.model.state_dict() | {"payload": Touches(tmp_path / "touched")}, folder / "pytorch_model.bin")
    assert "pytorch_model.bin cannot be read as weights: " in refusal("sps", folder, target)
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


def test_a_target_that_has_no_safetensors_loads_from_its_pickle(tiny_model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    loaded = load_model(Source("folder", str(tmp_path)), device="cpu").target.model.state_dict()
    assert weights.keys() <= loaded.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    torch.save({name: tensor for name, tensor in weights.items() if "norm" not in name}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"lacks the weights that its config\.json describes: missing model\."):
        load_model(Source("folder", str(tmp_path)), device="cpu")
