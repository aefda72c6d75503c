"""Shared by all tests: shape checking of the library's signatures, tiny random models, and one way to run a turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from jaxtyping import config, install_import_hook

# Before anything imports these modules: their jaxtyping annotations are enforced here and cost nothing elsewhere.
_CHECKED = ["base", "tree", "cache", "top", "sampling", "verify", "target", "graph"]
with install_import_hook([f"methods.{name}" for name in _CHECKED], "beartype.beartype"):
    import methods.base
    import methods.cache
    import methods.sampling
    import methods.target
    import methods.tree
    import methods.verify

# Names that methods.base imports for type checkers only; a runtime checker needs them too.
methods.base.Draws = methods.sampling.Draws
methods.base.Tree = methods.tree.Tree

from methods.base import Drafter, Request, Step  # noqa: E402
from methods.decoding import decode  # noqa: E402
from methods.paths import cache_folder  # noqa: E402
from methods.target import Target  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster's tests wait more than they compute: begun first, they wait beside the others."""
    items.sort(key=lambda item: item.get_closest_marker("slurm") is None)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests' own, with the user's unpacked model: what a busy machine seems to do must not stay in theirs."""
    folder = tmp_path_factory.mktemp("cache")
    for unpacked in cache_folder().glob("llm-*"):
        (folder / unpacked.name).symlink_to(unpacked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTBENCH_CACHE", str(folder))
        yield


# The same examples on every run: a red build must be red again on a laptop.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("house")

VOCAB = 48
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random causal LM of this config. Weights are large, so that distributions are peaked and text wanders."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=1.0 if "embed" in name or "head" in name else 0.25)
    return model.to(dtype).eval().requires_grad_(False)


def tiny_llama(dtype: torch.dtype = torch.float64, *, layers: int = 7, seed: int = 0, **changes: Any) -> Any:
    """Grouped-query attention (4 heads, 2 key/value heads), so that a cache that mixes them up fails."""
    from transformers import LlamaConfig

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return tiny_model(LlamaConfig(**shape | changes), dtype, seed)


def run(target: Target, drafter: Drafter, request: Request) -> tuple[list[int], list[Step]]:
    """The answer of one turn and the steps that made it."""
    steps = list(decode(target, drafter, request))
    return [token for step in steps for token in step.tokens], steps


def random_prompts(
    count: int, *, lengths: Iterable[int] = range(1, 41), vocab: int = VOCAB, seed: int = 0
) -> list[tuple[int, ...]]:
    """Prompts of all these lengths in turn. Every second one repeats a short phrase, so that lookups find something."""
    random = torch.Generator().manual_seed(seed)
    cycle = list(lengths)
    prompts = []
    for index in range(count):
        length = cycle[index % len(cycle)]
        period = length if index % 2 else max(1, length // 3)
        phrase = torch.randint(vocab, (period,), generator=random).tolist()
        prompts.append(tuple((phrase * length)[:length]))
    return prompts


@st.composite
def parent_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 20) -> list[int]:
    """Any rooted tree in topological order, as parent pointers."""
    size = draw(st.integers(min_size, max_size))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


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
    from fault_support import Server

    with Server() as running:
        yield running
