"""Shared by all tests: shape checking of the library's signatures, tiny random models, and one way to run a turn."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

# Before anything imports these modules: their jaxtyping annotations are enforced here and cost nothing elsewhere.
_CHECKED = [
    "base",
    *(f"decode.{name}" for name in ("draws", "tree", "topk", "sampling", "verify", "target")),
    *(f"runtime.{name}" for name in ("cache", "cuda_graphs")),
]
with install_import_hook([f"methods.{name}" for name in _CHECKED], "beartype.beartype"):
    for _name in _CHECKED:
        import_module(f"methods.{_name}")

from methods.common.paths import cache_folder  # noqa: E402
from methods.decode.target import Target  # noqa: E402
from tests.support.models import CHAT_TEMPLATE, tiny_llama  # noqa: E402

torch.set_num_threads(1)


_MODEL_FIXTURES = {"llama", "target", "tiny_model_folder", "server"}
_MODEL_MODULES = {
    "methods.loading.model",
    *(f"tests.support.{name}" for name in ("families", "heads", "models", "page")),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster's tests wait more than they compute: begun first, they wait beside the others.

    Tests that may build a model are marked: those that ask for such a fixture, and all of a file that imports a maker.
    """
    items.sort(key=lambda item: item.get_closest_marker("slurm") is None)
    for item in items:
        assert isinstance(item, pytest.Function)
        makers = {getattr(value, "__module__", None) for value in vars(item.module).values()}
        if _MODEL_FIXTURES.intersection(item.fixturenames) or makers & _MODEL_MODULES:
            item.add_marker("model")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests' own, with the user's unpacked model: what a busy machine seems to do must not stay in theirs."""
    folder = tmp_path_factory.mktemp("cache")
    for unpacked in cache_folder().glob("llm-*"):
        (folder / unpacked.name).symlink_to(unpacked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTBENCH_CACHE", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty folder to stand in: relative paths, ``results`` above all, must not lead to what a user's run wrote."""
    folder = tmp_path_factory.mktemp("working")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield
    assert list(folder.iterdir()) == [], "a test wrote where it happened to run"


# The same examples on every run: a red build must be red again on a laptop.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("project")


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """For the few tests that run for long: checking shapes doubles the time of a tiny model."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="session")
def target(llama: Any) -> Target:
    return Target(llama)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random 2-layer float32 Llama and a byte-level tokenizer in hub layout, for a ``Source("folder", ...)``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    # One token a byte and no merges: any text encodes, and decodes back to itself.
    alphabet = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[2], pad_token=special[0]
    )
    fast.chat_template = CHAT_TEMPLATE

    folder = tmp_path_factory.mktemp("tiny-model")
    model = tiny_llama(
        torch.float32,
        layers=2,
        vocab_size=len(fast),
        max_position_embeddings=4096,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """Runs commands in forks, for the tests that strike them (``fault_support``)."""
    from tests.support.faults import Server

    with Server() as running:
        yield running
