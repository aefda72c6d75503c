"""Targets that cannot be measured: what their small files can tell is said in one line before any weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import methods
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.loading.model import Loaded, Source, load_model
from tests.support.heads import write_eagle, write_medusa
from tests.support.models import tiny_llama

Change = Callable[[Path], Any]


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


def setting(file: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def text(file: str, content: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def without(*files: str) -> Change:
    return lambda folder: [(folder / file).unlink() for file in files]


def poisoned(value: float) -> Change:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.norm.weight"][0] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def sharded(*files: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "elsewhere.safetensors")
        index = {"metadata": {}, "weight_map": dict(zip("abc", files, strict=False))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


BEFORE_WEIGHTS: dict[str, tuple[Change, str]] = {
    "no config": (without("config.json"), "is not a model folder: it holds no config.json"),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), "cannot be loaded"),
    "an empty config": (text("config.json", ""), "cannot be loaded"),
    "a config that is no JSON": (text("config.json", "{"), "cannot be loaded"),
    "a config that is a list": (text("config.json", "[1]"), "cannot be loaded"),
    "a config in another encoding": (text("config.json", b'{"model_type": "caf\xe9"}'), "cannot be loaded"),
    "a config with NUL bytes": (text("config.json", b"\0" * 64), "cannot be loaded"),
    "an architecture nobody knows": (setting("config.json", model_type="mamba99"), "cannot be loaded"),
    "sizes that are words": (setting("config.json", hidden_size="big"), "cannot be loaded"),
    "a size of none": (setting("config.json", hidden_size=0), "a model without size"),
    "a negative vocabulary": (setting("config.json", vocab_size=-5), "cannot be loaded|without size"),
    "another hidden size": (setting("config.json", hidden_size=64), "its config needs"),
    "another vocabulary": (setting("config.json", vocab_size=999), "its config needs"),
    "more layers than weights": (setting("config.json", num_hidden_layers=3), "missing model.layers.2"),
    "fewer layers than weights": (setting("config.json", num_hidden_layers=1), "unexpected model.layers.1"),
    "an empty weights file": (text("model.safetensors", b""), "cannot be read as weights"),
    "weights that are text": (text("model.safetensors", "<html>404</html>"), "cannot be read as weights"),
    "a tokenizer that is no JSON": (text("tokenizer.json", "{"), "cannot be loaded"),
    "a tokenizer that is empty": (text("tokenizer.json", ""), "cannot be loaded"),
    "an index of no files": (sharded(), "cannot be read as weights"),
    "an index that is no JSON": (
        lambda folder: [without("model.safetensors")(folder), text("model.safetensors.index.json", "{")(folder)],
        "cannot be read as weights",
    ),
}


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        load_model(Source("folder", str(folder)), device="cpu", **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a weight fails the test."""
    model = transformers.AutoModelForCausalLM
    monkeypatch.setattr(model, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))


@pytest.mark.parametrize("kind", BEFORE_WEIGHTS)
def test_what_small_files_can_tell_is_said_before_any_weight_is_read(folder: Path, no_weights: None, kind: str) -> None:
    change, said = BEFORE_WEIGHTS[kind]
    change(folder)
    found = refusal(folder)
    assert any(each in found for each in said.split("|"))
    assert str(folder) in found


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no such dtype": ({"dtype": "int8"}, "dtype=int8 is not known; choose float32"),
    "no such device": ({"device": "gpu"}, "device=gpu is not a device; choose auto, cpu, cuda"),
    "a longer context than the model's": ({"context": 4097}, "context=4097 must lie in [2, 4096] for this model"),
    "no such end of text": ({"eos_tokens": ("<|nope|>",)}, "eos_tokens: '<|nope|>' is not a token of this"),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_setting_that_the_model_cannot_have_is_refused_before_any_weight_is_read(
    folder: Path, no_weights: None, kind: str
) -> None:
    options, said = OPTIONS[kind]
    with pytest.raises(ConfigError) as refused:
        load_model(Source("folder", str(folder)), **{"device": "cpu"} | options)
    assert said in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_before_any_weight_is_read(folder: Path, no_weights: None) -> None:
    with pytest.raises(ConfigError, match=r"^device=cuda was asked for, but torch sees no GPU; use cpu$"):
        load_model(Source("folder", str(folder)), device="cuda")


def test_a_tokenizer_of_another_model_is_said_before_any_weight_is_read(
    folder: Path, no_weights: None, tmp_path: Path
) -> None:
    larger = tiny_llama(torch.float32, layers=2, vocab_size=100, max_position_embeddings=4096)
    larger.save_pretrained(tmp_path / "larger")
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "larger" / file, folder / file)
    assert "has 259 tokens, the model only 100: they don't match" in refusal(folder)


@pytest.mark.parametrize("kind", ["vit", "t5", "clip"])
def test_a_model_that_writes_no_text_by_itself_is_refused(folder: Path, kind: str) -> None:
    setting("config.json", model_type=kind)(folder)
    assert "cannot be loaded" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_weights_that_are_no_numbers_are_a_wrong_model_and_no_traceback(folder: Path, value: float) -> None:
    poisoned(value)(folder)
    assert "cannot be measured: " in refusal(folder)


@pytest.mark.parametrize("wrong", ["</s>", [2, "</s>"], 2.5], ids=str)
def test_an_end_of_text_that_is_no_id_is_refused(folder: Path, wrong: Any) -> None:
    setting("generation_config.json", eos_token_id=wrong)(folder)
    assert refusal(folder)


def test_a_model_that_names_no_end_of_text_is_refused(folder: Path) -> None:
    for file in ("config.json", "generation_config.json"):
        setting(file, eos_token_id=None)(folder)
    setting("tokenizer_config.json", eos_token=None)(folder)
    assert "eos_tokens must name at least one token: this model names no end of text itself" in refusal(folder)


HEAD_CONFIGS = {
    "a list": "[]",
    "NaN": "NaN",
    "nested without end": "[" * 100_000,
    "another encoding": b'{"a": "\xe9"}',
    "heads that are a word": '{"num_attention_heads": "four"}',
    "no heads at all": '{"num_attention_heads": 0}',
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=1, vocab_size=12))


@pytest.mark.parametrize("kind", HEAD_CONFIGS)
def test_a_head_s_config_that_describes_nothing_is_refused(target: Target, tmp_path: Path, kind: str) -> None:
    head = write_eagle(tmp_path, target)
    text("config.json", HEAD_CONFIGS[kind])(head)
    with pytest.raises(ConfigError) as refused:
        methods.load("eagle2", {"weights": str(head)}, target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    ("method", "write", "file"),
    [("eagle", write_eagle, "pytorch_model.bin"), ("medusa", write_medusa, "medusa_lm_head.pt")],
)
def test_a_head_that_holds_no_numbers_is_refused(
    target: Target, tmp_path: Path, method: str, write: Any, file: str, value: float
) -> None:
    head = write(tmp_path, target)
    tensors = torch.load(head / file, weights_only=True)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] = value
    torch.save(tensors, head / file)
    knobs = {"tree": "2 | 0:2"} if method == "medusa" else {}
    with pytest.raises(ConfigError, match=f"{name} holds NaN or infinity"):
        methods.load(method, {"weights": str(head), **knobs}, target)


@pytest.mark.parametrize(
    "ranked",
    [torch.tensor([0, 1, 12]), torch.tensor([0, 1, -1]), torch.tensor([0, 1, 1]), torch.tensor([0.0, 1.0, 2.0])],
    ids=["past the vocabulary", "negative", "twice", "no ids"],
)
def test_a_draft_vocabulary_of_other_tokens_is_refused(target: Target, tmp_path: Path, ranked: torch.Tensor) -> None:
    head = write_eagle(tmp_path, target)
    save_file({"tokens": ranked}, head / "draft_vocab.safetensors")
    with pytest.raises(ConfigError, match="must rank different tokens of the target's 12"):
        methods.load(
            "eagle2", {"weights": str(head), "draft_vocab": 3, "top_k": 2, "total_tokens": 3, "depth": 1}, target
        )


def test_the_folder_of_these_tests_is_a_good_one(folder: Path) -> None:
    assert isinstance(load_model(Source("folder", str(folder)), device="cpu"), Loaded)
