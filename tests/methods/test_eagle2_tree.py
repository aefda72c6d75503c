"""EAGLE-2's trees against the paper's text, on laws of the draft that the test makes up, and on true heads."""

from __future__ import annotations

import itertools
import math
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import methods.eagle2
from methods.base import Context, Draft, Outcome, Prefill, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.draws import Draws
from methods.decode.target import Target
from methods.eagle2 import Eagle2, Eagle2Config
from tests.support.heads import write_eagle
from tests.support.models import random_prompts, run, tiny_llama
from tests.support.reference_heads import (
    Law,
    Path_,
    SlowEagle,
    Watched,
    log_probs,
    paths_of,
    plus,
    slow_tree,
    true_features,
)


class FakeHead:
    """Draws a path's logits from a law, and checks that a row is fed behind its own ancestors and sees no others."""

    def __init__(self, law: Law) -> None:
        self.law = law

    def begin(self, request: Request, prefill: Prefill, rows: int) -> None: ...

    def observe(self, outcome: Outcome) -> None: ...

    def catch_up(self) -> Tensor:
        self.paths: list[Path_] = [()]  # a feature is the index of its path here
        self.ended, self.rows_read = False, 0
        return torch.zeros(1, 1)

    def extend(self, tokens: Tensor, features: Tensor, tree: Tensor) -> Tensor:
        first = len(self.paths)
        self.paths += [(*self.paths[int(f)], token) for f, token in zip(features[:, 0], tokens.tolist(), strict=True)]
        for path, seen in zip(self.paths[first:], tree.tolist(), strict=True):
            columns = [drafted for drafted, sees in zip(self.paths[1:], seen, strict=True) if sees]
            assert columns == [path[:length] for length in range(1, len(path) + 1)]
        return torch.arange(first, len(self.paths))[:, None].float()

    def logits(self, features: Tensor) -> Tensor:
        self.rows_read += features.shape[0]
        return torch.tensor([self.law(self.paths[int(index)]) for index in features[:, 0]])

    @property
    def draft(self) -> Any:
        """Its own output head, over the whole vocabulary."""
        return self

    def tokens(self, columns: Tensor) -> Tensor:
        return columns

    def end_draft(self) -> None:
        self.ended = True


def context(ids: list[int]) -> Context:
    return Context(ids, 99, Sampling(), Draws(0, "0", 0, 4))


def drafted(law: Law, config: Eagle2Config) -> tuple[Draft, FakeHead]:
    """What EAGLE-2 proposes under a law, root 77."""
    head = FakeHead(law)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods.eagle2, "EagleHead", lambda weights, name, target, **_: head)
        drafter = Eagle2(config, SimpleNamespace(vocab=len(law(()))))
    draft = drafter.propose(context([5, 77]))
    assert head.ended
    assert draft.rows == draft.tree.size <= drafter.max_rows
    return draft, head


def tree_of(draft: Draft) -> set[Path_]:
    """The paths of a draft, after checking that it is a tree in itself: connected, in order, siblings distinct."""
    parents, paths = draft.tree.parents.tolist(), paths_of(draft)
    assert parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(parents) if node)
    assert len(set(paths)) == len(paths)
    assert draft.tree.depths.tolist() == [len(path) for path in paths]
    expected = [[path[: len(other)] == other for other in paths] for path in paths]
    assert draft.tree.mask.tolist() == expected
    return set(paths[1:])


def made_up_law(kind: str, vocab: int, seed: int) -> Law:
    """Logits that depend on the path alone. All but ``smooth`` tie: between siblings, cousins, child and parent."""

    @cache
    def law(path: Path_) -> list[float]:
        dice = random.Random(hash((seed, *path)))
        if kind == "smooth":
            return [dice.gauss(0, 3) for _ in range(vocab)]
        if kind == "levels":
            return [dice.choice([0.0, 1.0, 2.5]) for _ in range(vocab)]
        if kind == "same everywhere":  # every node has the same children, so values tie across branches
            return [float(token * 7 % 3) for token in range(vocab)]
        if kind == "sure":  # one child of probability 1: as good as its parent
            sure = dice.randrange(vocab)
            return [200.0 if token == sure else dice.choice([0.0, 1.0]) for token in range(vocab)]
        if kind == "twins":  # rows of the output head that are the same twice
            half = [dice.gauss(0, 2) for _ in range((vocab + 1) // 2)]
            return [half[token // 2] for token in range(vocab)]
        if kind == "masked":
            return [dice.choice([-math.inf, -1.0, dice.gauss(0, 1)]) for _ in range(vocab - 1)] + [0.0]
        return [1.0] * vocab

    return law


KINDS = ["smooth", "levels", "same everywhere", "sure", "twins", "masked", "flat"]
PAPER = Eagle2Config()


def random_config(dice: random.Random, vocab: int, **changes: Any) -> Eagle2Config:
    k, depth = dice.randint(1, min(vocab, 5)), dice.randint(1, 5)
    return Eagle2Config(**{"total_tokens": dice.randint(1, 30), "depth": depth, "top_k": k} | changes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_trees_are_the_papers(kind: str) -> None:
    for seed in range(150):
        dice = random.Random(seed)
        vocab = dice.randint(2, 12)
        law, config = made_up_law(kind, vocab, seed), random_config(dice, vocab)
        draft, _ = drafted(law, config)
        slow = slow_tree(law, config)
        assert tree_of(draft) == set(slow), (seed, config)
        assert draft.tree.size - 1 == len(slow) == config.nodes


@pytest.mark.parametrize("kind", ["smooth", "levels", "sure"])
def test_log_confidence_is_the_draft_s_log_probability_of_each_node_given_its_parent(kind: str) -> None:
    law = made_up_law(kind, 12, seed=3)
    draft, _ = drafted(law, Eagle2Config(total_tokens=20, depth=3, top_k=4))
    assert draft.log_confidence is not None
    expected = [float(torch.tensor(law(path[:-1])).log_softmax(-1)[path[-1]]) for path in paths_of(draft)[1:]]
    assert draft.log_confidence.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_item_6_at_the_papers_settings_60_of_510_nodes_are_chosen_in_at_most_6_levels(kind: str) -> None:
    law = made_up_law(kind, 40, seed=1)
    for total in (60, 59, 50, 48):  # the paper's two readings for 7B, then 13B and 70B
        config = Eagle2Config(total_tokens=total)
        draft, head = drafted(law, config)
        assert head.rows_read * config.top_k == 510
        assert len(head.paths) == 1 + 5 * 10  # the root and five levels of ten were fed: six passes of the head
        paths = tree_of(draft)
        assert len(paths) == config.nodes == total
        assert max(map(len, paths)) <= 6
        assert paths == set(slow_tree(law, config))
        assert draft.tokens[0] == 77
        assert draft.rule == "match"
        assert draft.mask is draft.offsets is draft.q is None


def test_no_more_nodes_are_asked_for_than_there_are() -> None:
    draft, _ = drafted(made_up_law("smooth", 3, 0), Eagle2Config(total_tokens=60, depth=2, top_k=2))
    assert len(tree_of(draft)) == 2 + 2 * 2


@pytest.mark.parametrize("vocab", [3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_item_7_with_the_whole_vocabulary_the_tree_is_the_likeliest_of_all_paths(kind: str, vocab: int) -> None:
    """The likeliest m of *all* paths: two levels deep for any m; six deep for m <= top_k, for then no frontier is too
    narrow (a path's prefixes are as likely as itself, so they are among the m as well)."""
    law = made_up_law(kind, vocab, seed=vocab)
    sums: dict[Path_, float] = {(): 0.0}
    for depth in range(6):
        for path in itertools.product(range(vocab), repeat=depth):
            for token, confidence in enumerate(log_probs(law, path)):
                sums[(*path, token)] = plus(sums[path], confidence)
    del sums[()]
    for depth, most in [(2, vocab + vocab**2), (6, vocab)]:
        everything = sorted((value for path, value in sums.items() if len(path) <= depth), reverse=True)
        for total in range(1, most + 1):
            draft, _ = drafted(law, Eagle2Config(total_tokens=total, depth=depth, top_k=vocab))
            assert sorted((sums[path] for path in tree_of(draft)), reverse=True) == everything[:total]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"expand": "confidence"},
        {"rerank": False},
        {"rerank": False, "expand": "confidence"},
        {"rerank_by": "confidence"},
        {"rerank_by": "confidence", "expand": "confidence"},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_ablations_are_what_the_module_says_and_still_trees(kind: str, changes: dict[str, Any]) -> None:
    for seed in range(12):
        dice = random.Random(seed)
        vocab = dice.randint(2, 9)
        law, config = made_up_law(kind, vocab, seed), random_config(dice, vocab, **changes)
        draft, _ = drafted(law, config)
        paths = tree_of(draft)
        assert paths == set(slow_tree(law, config)), (seed, config)
        if not config.rerank:
            assert len(paths) == config.top_k * config.depth == config.nodes


@pytest.mark.parametrize("twins", [False, True], ids=["all rows differ", "every row of the output head twice"])
def test_trees_of_a_true_head_are_the_papers(tmp_path: Path, twins: bool) -> None:
    target = Target(tiny_llama(layers=2, vocab_size=12))
    if twins:
        rows = target.model.get_output_embeddings().weight
        rows[1::2] = rows[0::2]
    folder, config = write_eagle(tmp_path, target), {"total_tokens": 14, "depth": 4, "top_k": 3}
    slow, cycles = SlowEagle(folder, target), []

    def look(context: Context, draft: Draft) -> None:
        ids = context.ids
        features = true_features(target, ids[:-1])

        @cache
        def law(path: Path_) -> list[float]:
            return (slow.after(features, ids[1:], path) @ slow.output.T)[0].float().tolist()

        assert tree_of(draft) == set(slow_tree(law, Eagle2Config(**config)))
        cycles.append(len(ids))

    drafter = methods.load("eagle2", {"weights": str(folder), **config}, target)
    for index, prompt in enumerate(random_prompts(2, lengths=(3, 11), vocab=12)):
        run(target, Watched(drafter, look), Request(prompt, 16, sampling=Sampling(1.0, seed=index)))
    assert len(cycles) >= 10


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"total_tokens": 0}, "total_tokens, depth and top_k must be 1 or more"),
        ({"depth": 0}, "must be 1 or more"),
        ({"expand": "confidnce"}, "^expand=confidnce is not known; choose value or confidence"),
        ({"rerank_by": "rank"}, "^rerank_by=rank is not known; choose value or confidence"),
        ({"top_k": 13}, "^top_k=13 exceeds the vocabulary of 12"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        methods.load("eagle2", knobs, SimpleNamespace(vocab=12))
