"""What Medusa, Hydra and EAGLE draft, token by token, against their equations; and that no method keeps a prompt."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import methods
from methods.base import Context, Draft, Drafter, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.sampling import distribution
from methods.decode.target import Target
from tests.support.heads import word_tokenizer, write_draft_model, write_eagle, write_hydra, write_medusa
from tests.support.models import random_prompts, run, tiny_llama
from tests.support.reference_heads import (
    Path_,
    SlowEagle,
    Watched,
    agree,
    below,
    decoder_layer,
    paths_of,
    read,
    rms_norm,
    true_features,
)

VOCAB = 8  # small, so that random drafts are often right
TREES = ["4 | 0:3 1:2 2:1 0/0:3 1/0:1 0/0/0:2", "2 | 0:1 1:2 1/1:2 1/1/1:1", "3 | 2:2 2/1:2"]
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1)]


@pytest.fixture(scope="module")
def target() -> Target:
    rope = {"rope_type": "default", "rope_theta": 100.0}  # not the default, which a head must not take for granted
    return Target(tiny_llama(layers=2, vocab_size=VOCAB, rope_parameters=rope))


def ranked(logits: Tensor) -> list[int]:
    """Tokens by falling logit; of equals the lowest id first."""
    row = logits.tolist()
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def ranks_of(tree: str) -> list[Path_]:
    """The rank paths of a tree in the notation of ``methods.heads.static_trees``, by (depth, path)."""
    root, entries = tree.split("|")
    found: list[Path_] = [(rank,) for rank in range(int(root))]
    for entry in entries.split():
        parent, count = entry.split(":")
        found += [(*map(int, parent.split("/")), rank) for rank in range(int(count))]
    return sorted(found, key=lambda path: (len(path), path))


def watch(target: Target, drafter: Drafter, look: Callable[[Context, Draft], None], sampling: Sampling) -> None:
    """Decode a few texts under watch; drafts must be right to several depths, or rejected rows alone were tried."""
    accepted = set()
    for prompt in random_prompts(3, lengths=(1, 2, 11), vocab=VOCAB):
        request = Request(prompt, 14, sampling=sampling)
        accepted |= {step.accepted for step in run(target, Watched(drafter, look), request)[1][1:]}
    assert {0, 1} <= accepted


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
@pytest.mark.parametrize(("tree", "tied"), [*zip(TREES, [False, True, False], strict=True)])
def test_medusas_token_of_rank_r_at_depth_d_is_the_rth_of_head_d_whatever_came_before(
    target: Target, tmp_path: Path, tree: str, tied: bool, sampling: Sampling
) -> None:
    """Heads read the feature that chose the root: that of the last accepted token, one before the root."""
    folder = write_medusa(tmp_path, target, tied=tied)
    tensors, _ = read(folder, "medusa_lm_head.pt")
    shared = target.model.get_output_embeddings().weight.double()

    def look(context: Context, draft: Draft) -> None:
        h = true_features(target, context.ids[:-1])[-1]
        heads = []
        for k in range(4):
            state = h + silu(tensors[f"{k}.0.linear.weight"] @ h + tensors[f"{k}.0.linear.bias"])
            heads.append(ranked((shared if tied else tensors[f"{k}.1.weight"]) @ state))
        expected = [heads[len(ranks) - 1][ranks[-1]] for ranks in ranks_of(tree)]
        assert draft.tokens.tolist() == [context.ids[-1], *expected]
        assert draft.tree.depths.tolist() == [0, *map(len, ranks_of(tree))]

    watch(target, methods.load("medusa", {"weights": str(folder), "tree": tree}, target), look, sampling)


class SlowHydra:
    """Hydra's heads, one path at a time."""

    def __init__(self, folder: Path, target: Target, prefix: bool) -> None:
        self.tensors, _ = read(folder, "hydra_lm_head.pt")
        self.prefix, self.embedding, config = prefix, target.embedding.double(), target.model.config
        self.facts = {"rope_theta": 100.0, "rms_norm_eps": config.rms_norm_eps}
        self.facts |= {key: getattr(config, key) for key in ("num_attention_heads", "num_key_value_heads")}

    def grounds(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """g of every token, and the keys and values behind it."""
        own = below(self.tensors, "prefix_embeding_layer.")
        output, keys, values = decoder_layer(features, below(own, "layers.0."), self.facts, input_norm=True)
        return rms_norm(output, own["norm.weight"], self.facts["rms_norm_eps"]), keys, values

    def logits(self, g: Tensor, root: int, path: Path_) -> Tensor:
        k = len(path)
        u = torch.cat([g, *(self.embedding[token] for token in (root, *path))])
        first, block, output = (1, 3, f"hydra_lm_head.{k}.1") if self.prefix else (0, 1, f"hydra_lm_head.{k}")
        s = self.apply(f"hydra_mlp.{k}.{first}.res_connection", u)
        s = s + silu(self.apply(f"hydra_mlp.{k}.{first}.linear", u))
        for _ in range(3):
            s = s + silu(self.apply(f"hydra_mlp.{k}.{block}.linear", s))
        return self.apply(output, s)

    def apply(self, name: str, x: Tensor) -> Tensor:
        return self.tensors[f"{name}.weight"] @ x + self.tensors[f"{name}.bias"]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
@pytest.mark.parametrize(("tree", "prefix"), [*zip(TREES, [True, True, False], strict=True)])
def test_hydras_tokens_are_ranked_behind_their_own_path(
    target: Target, tmp_path: Path, tree: str, prefix: bool, sampling: Sampling
) -> None:
    folder = write_hydra(tmp_path, target, prefix=prefix)
    drafter, slow = (
        methods.load("hydra", {"weights": str(folder), "tree": tree}, target),
        SlowHydra(folder, target, prefix),
    )

    def look(context: Context, draft: Draft) -> None:
        ids = context.ids
        grounds = true_features(target, ids[:-1])
        if prefix:
            grounds, keys, values = slow.grounds(grounds)
            cache = drafter._prefix.cache
            assert cache.length == target.cache.length == len(ids) - 1
            assert agree(cache.rows(0)[0], keys)
            assert agree(cache.rows(0)[1], values)
        expected: dict[Path_, Path_] = {(): ()}  # ranks -> tokens
        for ranks in ranks_of(tree):
            before = expected[ranks[:-1]]
            expected[ranks] = (*before, ranked(slow.logits(grounds[-1], ids[-1], before))[ranks[-1]])
        assert paths_of(draft) == list(expected.values())
        assert draft.tokens[0] == ids[-1]

    watch(target, drafter, look, sampling)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(0.7, top_k=5, seed=2)], ids=["greedy", "t1", "warped"])
@pytest.mark.parametrize("tree", ["eagle_25", TREES[1]])
def test_eagles_children_are_the_likeliest_or_drawn_behind_their_own_path(
    target: Target, tmp_path: Path, tree: str, sampling: Sampling
) -> None:
    """At T>0 they are drawn one after the other from the q of the node's own path, warped as the target is."""
    folder = write_eagle(tmp_path, target)
    drafter, slow = methods.load("eagle", {"weights": str(folder), "tree": tree}, target), SlowEagle(folder, target)

    def look(context: Context, draft: Draft) -> None:
        ids, paths, parents = context.ids, paths_of(draft), draft.tree.parents.tolist()
        features = true_features(target, ids[:-1])
        inner = sorted(set(parents[1:]))
        assert sorted(draft.q_nodes) == (inner if draft.rule == "siblings" else [])
        assert (draft.rule == "siblings") != sampling.greedy
        for node in inner:
            logits = (slow.after(features, ids[1:], paths[node]) @ slow.output.T)[0]
            children = [draft.tokens[child].item() for child, parent in enumerate(parents) if parent == node]
            if sampling.greedy:
                assert children == ranked(logits)[: len(children)]
                continue
            q = draft.q[draft.q_nodes.index(node)]
            assert torch.allclose(q, distribution(logits[None], sampling)[0], atol=1e-4)
            assert children == drawn_without_replacement(
                q.double(), context, len(ids) + len(paths[node]), len(children)
            )

    watch(target, drafter, look, sampling)


def drawn_without_replacement(left: Tensor, context: Context, position: int, count: int) -> list[int]:
    found = []
    for rank in range(count):
        uniform = context.draws.uniform("draft", torch.tensor(position), lane=rank)
        above = left.cumsum(0) > uniform * left.sum()
        found.append(int(above.int().argmax()))  # 0 once nothing is left: of no probability, so never accepted
        left = left.index_fill(0, torch.tensor(found), 0.0)
    return found


def test_a_tree_that_eagle_loads_can_be_drafted_at_every_temperature(tmp_path: Path) -> None:
    wide = Target(tiny_llama(layers=1, vocab_size=20))
    knobs = {"weights": str(write_eagle(tmp_path, wide)), "tree": "17 | 0:1"}
    try:
        drafter = methods.load("eagle", knobs, wide)
    except ConfigError:
        return  # as good: said before anything is measured
    for sampling in SAMPLINGS:
        assert len(run(wide, drafter, Request((1, 2), 5, sampling=sampling))[0]) == 5


SETTINGS: dict[str, tuple[dict[str, Any], Callable[[Path, Target], Path] | None]] = {
    "vanilla": ({}, None),
    "pld": ({}, None),
    "lookahead": ({"window": 3, "ngram": 3, "guesses": 3}, None),
    "sps": ({}, lambda folder, target: write_draft_model(folder, target, word_tokenizer(VOCAB))),
    "medusa": ({"tree": TREES[0]}, write_medusa),
    "hydra": ({"tree": TREES[0]}, write_hydra),
    "eagle": ({}, write_eagle),
    "eagle2": ({"total_tokens": 9, "depth": 3, "top_k": 3}, write_eagle),
}


@pytest.mark.parametrize("name", [name for name in methods.names() if name in methods._BUILT_IN])
def test_steps_are_the_same_bit_for_bit_whatever_was_decoded_before(target: Target, tmp_path: Path, name: str) -> None:
    knobs, write = SETTINGS[name]
    if write:
        knobs = knobs | {"weights": str(write(tmp_path, target))}
    requests = [
        Request(prompt, length, frozenset({3}), SAMPLINGS[length % 2], question=str(length))
        for prompt, length in zip(random_prompts(4, lengths=(1, 30, 8, 2), vocab=VOCAB), (31, 6, 17, 24), strict=True)
    ]
    fresh = [run(target, methods.load(name, knobs, target), request) for request in requests]
    used = methods.load(name, knobs, target)
    order = [0, 0, 1, 1, 2, 2, 3, 3, *range(4)]
    random.Random(0).shuffle(order)
    for index in order:
        assert run(target, used, requests[index]) == fresh[index]
