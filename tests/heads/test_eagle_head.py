"""The draft head of EAGLE and EAGLE-2 against the paper's equations, and its cache against the text it stands for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

import methods
from methods.base import Context, Draft, Outcome, Prefill, Request, Sampling
from methods.decode.target import Target
from methods.decode.tree import chain
from methods.heads.eagle_head import EagleHead
from tests.support.heads import write_eagle
from tests.support.models import random_prompts, run, tiny_llama
from tests.support.reference_heads import SlowEagle, Watched, agree, true_features

CPU = torch.device("cpu")
VOCAB = 8  # small, so that random drafts are often right


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=2, vocab_size=VOCAB))


@pytest.fixture(scope="module")
def folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eagle(tmp_path_factory.mktemp("eagle"), target)


def declare(folder: Path, **facts: object) -> Path:
    """Change what the head's config.json says."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return folder


def pairs(target: Target, rows: int, seed: int = 0) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, target.hidden, generator=generator, dtype=torch.float64)
    return features, torch.randint(VOCAB, (rows,), generator=generator).tolist()


def start(head: EagleHead, features: Tensor, tokens: list[int]) -> None:
    """Give the head a prompt whose pairs are these. Its first token is in no pair: no feature comes before it."""
    head.begin(Request((0, *tokens[:-1]), 64), Prefill(features, tokens[-1]), rows=16)


def commit(head: EagleHead, features: Tensor, tokens: list[int]) -> None:
    """One cycle that accepted all but the last of these tokens; the rows between belong to rejected drafts."""
    rows = 2 * len(tokens)
    hidden = torch.full((rows, features.shape[1]), torch.nan, dtype=features.dtype)
    hidden[0], hidden[rows - len(tokens) + 1 :] = features[0], features[1:]
    path = [0, *range(rows - len(tokens) + 1, rows)]
    draft = Draft(torch.zeros(rows, dtype=torch.long), chain(rows - 1, CPU))
    head.observe(Outcome(draft, path, tokens, hidden, torch.zeros(rows, VOCAB)))


@pytest.mark.parametrize("theta", [None, 500000.0, 100.0])
@pytest.mark.parametrize(("bias", "kv_heads"), [(True, 2), (False, 1), (True, 4), (False, 2)])
def test_item_2_the_forward_is_the_papers_equations(
    target: Target, tmp_path: Path, bias: bool, kv_heads: int, theta: float | None
) -> None:
    """Embedding first, no input norm, the residual of the fc output as it is, no final norm, pair i at position i."""
    folder = write_eagle(tmp_path, target, bias=bias, kv_heads=kv_heads)
    if theta is not None:
        declare(folder, rope_theta=theta)
    # Norm weights other than one, or a norm too many could hide.
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    tensors["layers.0.post_attention_layernorm.weight"].uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(3))
    torch.save(tensors, folder / "pytorch_model.bin")
    head, slow = EagleHead(str(folder), "eagle", target), SlowEagle(folder, target)
    for rows in (1, 2, 3, 30):
        features, tokens = pairs(target, rows, seed=rows)
        start(head, features, tokens)
        output = head.catch_up()
        outputs, keys, values = slow.run(features, tokens)
        assert agree(output, outputs[-1:])
        assert agree(head.draft.logits(output), outputs[-1:] @ slow.output.T)
        assert head.cache.length == rows
        assert agree(head.cache.rows(0)[0], keys)
        assert agree(head.cache.rows(0)[1], values)


def test_the_rope_base_is_the_heads_own_and_not_the_targets(tmp_path: Path) -> None:
    target = Target(
        tiny_llama(layers=2, vocab_size=VOCAB, rope_parameters={"rope_type": "default", "rope_theta": 50.0})
    )
    features, tokens = pairs(target, 30)
    for theta in (10000.0, 500000.0):
        folder = write_eagle(tmp_path / str(theta), target)
        if theta != 10000.0:  # as in LLaMA3 heads; Vicuna's say nothing
            declare(folder, rope_theta=theta)
        head = EagleHead(str(folder), "eagle2", target)
        start(head, features, tokens)
        head.catch_up()
        slow = SlowEagle(folder, target)
        slow.facts["rope_theta"] = theta
        assert agree(head.cache.rows(0)[0], slow.run(features, tokens)[1])


PUBLISHED = {
    "Vicuna": {"max_position_embeddings": 2048, "tie_word_embeddings": False},
    "LLaMA2-Chat": {"rope_scaling": None, "pretraining_tp": 1, "max_position_embeddings": 4096},
    "LLaMA3-Instruct": {"rope_theta": 500000.0, "rope_scaling": None, "attention_bias": False, "bias": False},
    "LLaMA3.1-Instruct": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_config_of_a_published_head_is_read_as_it_is(target: Target, tmp_path: Path, name: str) -> None:
    facts = PUBLISHED[name]
    common = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float16", "transformers_version": "4.28.1"}
    folder = write_eagle(tmp_path, target, bias=bool(facts.get("bias", True)), kv_heads=4)
    declare(folder, **common, **facts)
    declared = json.loads((folder / "config.json").read_text())
    if name == "Vicuna":  # older than grouped attention: one key/value head for every head is meant
        del declared["num_key_value_heads"]
        (folder / "config.json").write_text(json.dumps(declared))
    head = EagleHead(str(folder), "eagle", target)
    features, tokens = pairs(target, 9)
    start(head, features, tokens)
    output, slow = head.catch_up(), SlowEagle(folder, target)
    slow.facts["num_key_value_heads"] = 4
    assert agree(output, slow.run(features, tokens)[0][-1:]) == (name != "LLaMA3.1-Instruct")  # whose RoPE is bent


def test_the_target_s_own_embedding_feeds_the_head(target: Target, folder: Path, tmp_path: Path) -> None:
    """The stored one is a frozen copy of it, rounded differently; half of it would be two models in one."""
    copy = write_eagle(tmp_path, target)
    tensors = torch.load(copy / "pytorch_model.bin", weights_only=True)
    torch.save(tensors | {"embed_tokens.weight": tensors["embed_tokens.weight"] + 1}, copy / "pytorch_model.bin")
    outputs = []
    for each in (folder, copy):
        head = EagleHead(str(each), "eagle", target)
        start(head, *pairs(target, 5))
        outputs.append(head.catch_up())
    assert torch.equal(*outputs)


@pytest.mark.parametrize("seed", range(6))
def test_item_3_pairs_that_come_in_several_passes_are_one_text(target: Target, folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    head, slow = EagleHead(str(folder), "eagle", target), SlowEagle(folder, target)
    features, tokens = pairs(target, 25, seed)
    first = dice.choice([1, 2, 12])
    start(head, features[:first], tokens[:first])
    output, done = head.catch_up(), first
    while done < len(tokens):
        draft_something(head, output, dice)
        rows = min(dice.choice([1, 1, 2, 3, 7]), len(tokens) - done)
        commit(head, features[done : done + rows], tokens[done : done + rows])
        output, done = head.catch_up(), done + rows
        outputs, keys, values = slow.run(features[:done], tokens[:done])
        assert agree(output, outputs[-1:])
        assert head.cache.length == done
        assert agree(head.cache.rows(0)[0], keys)
        assert agree(head.cache.rows(0)[1], values)
    start(head, features, tokens)
    assert torch.allclose(head.catch_up(), output, rtol=1e-9)


def draft_something(head: EagleHead, output: Tensor, dice: random.Random) -> None:
    rows = dice.randint(1, 4)
    seen = torch.eye(rows, dtype=torch.bool)
    for level in range(1, dice.randint(1, 4)):
        output = head.extend(torch.full((rows,), level), output[:1].expand(rows, -1), seen)
        seen = torch.cat([seen, torch.eye(rows, dtype=torch.bool)], 1)
    head.end_draft()


def test_a_drafted_row_is_the_head_run_on_its_own_path_as_text(target: Target, folder: Path) -> None:
    head, slow = EagleHead(str(folder), "eagle", target), SlowEagle(folder, target)
    features, tokens = pairs(target, 7)
    start(head, features, tokens)
    root = head.catch_up()
    levels = [[(3,), (5,), (6,)], [(5, 2), (3, 2), (5, 7)], [(3, 2, 1), (5, 7, 4), (5, 7, 3), (5, 2, 1)]]
    drawn, outputs = [], {(): root}
    for level in levels:
        drawn += level
        seen = torch.tensor([[path[: len(other)] == other for other in drawn] for path in level])
        parents = torch.cat([outputs[path[:-1]] for path in level])
        rows = head.extend(torch.tensor([path[-1] for path in level]), parents, seen)
        outputs |= {path: row[None] for path, row in zip(level, rows, strict=True)}
    for path, output in outputs.items():
        assert agree(output, slow.after(features, tokens, path)), path
    assert head.cache.length == 7 + 10
    head.end_draft()
    assert head.cache.length == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("eagle", {}),
        ("eagle", {"tree": "4 | 0:4 1:4 2:2 0/0:4"}),
        ("eagle2", {"total_tokens": 12, "depth": 4, "top_k": 4}),
    ],
)
def test_item_10_in_every_cycle_the_cache_holds_the_true_pairs_of_the_text_and_nothing_else(
    target: Target, folder: Path, name: str, knobs: dict[str, object], temperature: float
) -> None:
    drafter = methods.load(name, {"weights": str(folder), **knobs}, target)
    slow, cycles = SlowEagle(folder, target), []

    def look(context: Context, draft: Draft) -> None:
        cache, ids = drafter._head.cache, context.ids
        assert cache.length == target.cache.length == len(ids) - 1
        _, keys, values = slow.run(true_features(target, ids[:-1]), ids[1:])
        assert agree(cache.rows(0)[0], keys)
        assert agree(cache.rows(0)[1], values)
        cycles.append(draft.tree.size)

    accepted = set()
    for index, prompt in enumerate(random_prompts(3, lengths=(1, 2, 13), vocab=VOCAB)):
        sampling = Sampling(temperature, seed=index)
        _, steps = run(target, Watched(drafter, look), Request(prompt, 20, sampling=sampling))
        accepted |= {step.accepted for step in steps[1:]}
    assert {0, 1, 2} <= accepted  # or the passes of more than one pair were never made
    assert len(cycles) > 20
