"""Every published format of a draft head loads, as it is and as safetensors, and is cast to the target's dtype."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import methods
from methods.base import Drafter, Request, Step
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.loading import convert
from tests.support.commands import environment
from tests.support.heads import word_tokenizer, write_draft_model, write_eagle, write_hydra, write_medusa
from tests.support.models import random_prompts, run, tiny_llama

VOCAB = 12
MEDUSA_TREE = {"tree": "2 | 0:2 0/0:1 0/0/0:1 0/0/0/0:1"}  # five levels: a head each
HYDRA_TREE = {"tree": "2 | 0:2 0/0:1 0/0/0:1"}
EAGLE2 = {"total_tokens": 6, "depth": 2, "top_k": 3}

FORMATS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "EAGLE as for Vicuna": ("eagle", {"tree": "2 | 0:2"}, write_eagle),
    "EAGLE as for LLaMA3, without bias": ("eagle2", EAGLE2, partial(write_eagle, bias=False)),
    "Medusa, five heads and a config that says two": ("medusa", MEDUSA_TREE, write_medusa),
    "Medusa, output head shared": ("medusa", MEDUSA_TREE, partial(write_medusa, tied=True)),
    "Hydra with a prefix layer": ("hydra", HYDRA_TREE, write_hydra),
    "Hydra, plain": ("hydra", HYDRA_TREE, partial(write_hydra, prefix=False)),
    "a draft model": ("sps", {}, lambda folder, target: write_draft_model(folder, target, word_tokenizer(VOCAB))),
}
BUNDLE = ["Medusa, five heads and a config that says two", "Hydra with a prefix layer", "EAGLE as for Vicuna"]


@pytest.fixture(scope="module")
def targets() -> dict[torch.dtype, Target]:
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    return {dtype: Target(tiny_llama(dtype, layers=1, vocab_size=VOCAB)) for dtype in dtypes}


@pytest.fixture(scope="module")
def folders(targets: dict[torch.dtype, Target], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    target = targets[torch.float32]
    return {name: write(tmp_path_factory.mktemp("head"), target) for name, (_, _, write) in FORMATS.items()}


def load(name: str, folder: Path, target: Target) -> Drafter:
    method, knobs, _ = FORMATS[name]
    return methods.load(method, {"weights": str(folder), **knobs}, target)


def weights_of(thing: Any) -> Iterator[Tensor]:
    """Every floating-point tensor that a drafter holds of its own, wherever it keeps it."""
    if isinstance(thing, Tensor):
        yield from [thing] if thing.is_floating_point() else []
    elif isinstance(thing, nn.Module):
        yield from thing.parameters()
    elif isinstance(thing, list | tuple | dict):
        for value in thing.values() if isinstance(thing, dict) else thing:
            yield from weights_of(value)
    elif type(thing).__module__.startswith("methods."):
        yield from weights_of(list(vars(thing).values()))


def text(target: Target, drafter: Drafter) -> list[tuple[list[int], list[Step]]]:
    return [run(target, drafter, Request(prompt, 12)) for prompt in random_prompts(3, lengths=(1, 6, 9), vocab=VOCAB)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_loads_in_the_targets_dtype_and_decodes(
    targets: dict[torch.dtype, Target], folders: dict[str, Path], name: str, dtype: torch.dtype
) -> None:
    target = targets[dtype]
    drafter = load(name, folders[name], target)
    assert {tensor.dtype for tensor in weights_of(drafter)} == {dtype}
    answers = text(target, drafter)
    if dtype != torch.bfloat16:  # there, near-ties may go either way
        assert [tokens for tokens, _ in answers] == [
            tokens for tokens, _ in text(target, methods.load("vanilla", {}, target))
        ]


@pytest.mark.parametrize(("name", "heads"), [("medusa", 5), ("hydra", 4)])
def test_heads_are_counted_in_the_file_and_not_in_its_config(
    targets: dict[torch.dtype, Target], folders: dict[str, Path], name: str, heads: int
) -> None:
    for format_, (method, knobs, _) in FORMATS.items():
        if method == name:
            deeper = {"weights": str(folders[format_]), "tree": f"{knobs['tree']} {'/'.join('0' * heads)}:1"}
            with pytest.raises(ConfigError, match=f"^tree is {heads + 1} deep, these weights have {heads} heads"):
                methods.load(name, deeper, targets[torch.float32])


@pytest.fixture(scope="module")
def converted(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three heads in one folder, and what the converter makes of it: one start of Python pays for all."""
    source, out = tmp_path_factory.mktemp("pickled"), tmp_path_factory.mktemp("converted") / "new"
    for name in BUNDLE:
        shutil.copytree(folders[name], source, dirs_exist_ok=True)
    command = [sys.executable, "-m", "methods.loading.convert", str(source), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(out / "manifest.json")]
    return source, out


@pytest.mark.parametrize("name", BUNDLE)
def test_converted_weights_draft_bit_for_bit_the_same(
    targets: dict[torch.dtype, Target], converted: tuple[Path, Path], name: str
) -> None:
    source, out = converted
    target = targets[torch.float32]
    assert text(target, load(name, out, target)) == text(target, load(name, source, target))


def test_the_manifest_names_what_was_read_and_written_with_its_hash(converted: tuple[Path, Path]) -> None:
    source, out = converted
    names = {path.name for path in out.iterdir()}
    stems = {"pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt"}
    assert names == {"manifest.json", "config.json", *(Path(stem).stem + ".safetensors" for stem in stems)}
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    entries = {entry["source"]: entry for entry in json.loads((out / "manifest.json").read_text())}
    assert set(entries) == stems
    for entry in entries.values():
        for path, key in ((source / entry["source"], "source_sha256"), (out / entry["file"], "sha256")):
            assert entry[key] == hashlib.sha256(path.read_bytes()).hexdigest()
        before = torch.load(source / entry["source"], weights_only=True)
        after = load_file(out / entry["file"])
        assert set(before) == set(after) == set(entry["tensors"])
        assert all(torch.equal(before[name], after[name]) for name in before)
        for name, (dtype, shape) in entry["tensors"].items():
            assert (dtype, shape) == ("float32", list(after[name].shape))


def test_a_pickle_with_more_than_tensors_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"weight": torch.zeros(2), "step": 3}, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path)])
    assert convert.main() == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("EAGLE as for Vicuna", "pytorch_model.safetensors"),  # what the converter writes
        ("EAGLE as for Vicuna", "model.safetensors"),  # as published beside the .bin of the head for LLaMA3 70B
        ("Medusa, five heads and a config that says two", "medusa_lm_head.safetensors"),
        ("Hydra with a prefix layer", "hydra_lm_head.safetensors"),
    ],
)
def test_safetensors_are_read_before_a_pickle(
    targets: dict[torch.dtype, Target], folders: dict[str, Path], tmp_path: Path, name: str, safe: str
) -> None:
    (pickled,) = (path for path in folders[name].iterdir() if path.name != "config.json")
    tensors = {key: value.clone() for key, value in torch.load(pickled, weights_only=True).items()}
    shutil.copy(folders[name] / "config.json", tmp_path)
    save_file(tensors, tmp_path / safe)
    target = targets[torch.float32]
    expected = text(target, load(name, tmp_path, target))
    (tmp_path / pickled.name).write_bytes(b"not a pickle")
    assert text(target, load(name, tmp_path, target)) == expected
