"""Whole methods against the target's law, draw by draw: ``decode`` with the real SpS and EAGLE over tables for models.

The target's next token depends on the last one only, so a long text is many windows of three tokens whose joint law,
given the token before, is known exactly. A G-test compares them, over thousands of cycle boundaries. Real methods must
pass and every planted mistake must fail it. ``DRAFTBENCH_FULL=1`` draws 200,000 windows for each method and
setting instead of 6,000, and prints the statistics under ``-s``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import methods.decode.loop
import methods.decode.verify
import methods.eagle
import methods.sps
from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request, Sampling
from methods.decode.draws import Draws
from methods.decode.loop import decode
from methods.decode.sampling import distribution, draw_siblings
from methods.decode.tree import from_list
from methods.eagle import Eagle, EagleConfig
from methods.sps import SpS, SpSConfig
from tests.support import laws
from tests.support.laws import MISTAKES, SETTINGS, Rejection, Row, accept_by, g_test, warp

shapes_unchecked = laws.shapes_unchecked
FULL = bool(os.environ.get("DRAFTBENCH_FULL"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if FULL else 300)]
TURN, CONTROL = 6_000, 3_500
"""Windows of one request (its positions differ; further turns have streams of their own), and those of a mistake."""
VOCAB, LENGTH = 6, 3
ALPHA = 1e-6
TREE = [-1, 0, 0, 0, 1, 1, 2, 4]


def table(depth: int, noise: float = 0.0) -> Tensor:
    """Logits after each of the last ``depth`` tokens: a target's, plus noise for a drafter's."""
    base, random = (
        np.random.default_rng(seed).standard_normal((VOCAB**each, VOCAB)) for seed, each in ((1, 1), (2, depth))
    )
    return torch.from_numpy(1.5 * np.tile(base, (VOCAB ** (depth - 1), 1)) + noise * random).float()


class TableModel:
    """Stands for a target or a draft model: a hidden state is the token itself, its logits are a row of a table."""

    context, vocab, dtype = 10**9, VOCAB, torch.float32
    device = head_device = torch.device("cpu")
    runtime = "hf"

    def __init__(self, noise: float = 0.0) -> None:
        self.table = table(1, noise)
        self.cache = SimpleNamespace(length=0, keep=lambda path: None)

    def prefill(self, ids: Tensor, *, capacity: int) -> Tensor:
        self.cache.length = ids.shape[0]
        return ids[:, None].float()

    def forward(self, tokens: Tensor, offsets: Tensor, mask: Tensor) -> Tensor:
        return tokens[:, None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[:, 0].long()]


class TableHead:
    """Stands for EAGLE's head: a feature holds the last two tokens."""

    def __init__(self, weights: Any, method: str, target: Any, **_: Any) -> None:
        self.table = table(2, 2.0)
        self.draft = self

    def begin(self, request: Request, prefill: Prefill, rows: int) -> None:
        self.ids = [request.prompt_ids[-1], prefill.root]

    def observe(self, outcome: Outcome) -> None:
        self.ids = [self.ids[-1], *outcome.tokens][-2:]

    def catch_up(self) -> Tensor:
        return torch.tensor([[VOCAB * self.ids[0] + self.ids[1]]])

    def extend(self, tokens: Tensor, features: Tensor, seen: Tensor) -> Tensor:
        return features % VOCAB * VOCAB + tokens[:, None]

    def end_draft(self) -> None:
        pass

    def logits(self, features: Tensor) -> Tensor:
        return self.table[features[:, 0]]

    def tokens(self, columns: Tensor) -> Tensor:
        return columns

    def spread(self, logits: Tensor) -> Tensor:
        return logits


class TopTree:
    """A deterministic tree for ``match``: rank r carries the drafter's r-th most likely token."""

    max_rows, rejection = len(TREE), False
    begin = observe = lambda *_: None

    def __init__(self) -> None:
        self.order = table(1, 1.0).argsort(1, descending=True).tolist()
        self.tree = from_list(TREE, TableModel.device)

    def propose(self, context: Context) -> Draft:
        tokens = context.ids[-1:]
        for child in range(1, len(TREE)):
            tokens.append(self.order[tokens[TREE[child]]][TREE[:child].count(TREE[child])])
        return Draft(torch.tensor(tokens), self.tree)


def sps(target: Any) -> SpS:
    loaded = SimpleNamespace(target=TableModel(1.0), tokenizer=None)
    with mock.patch.object(methods.sps, "load_model", return_value=loaded):
        return SpS(SpSConfig(num_draft=3, weights="./none"), target)


def eagle(target: Any) -> Eagle:
    with mock.patch.object(methods.eagle, "EagleHead", TableHead):
        return Eagle(EagleConfig(tree="3 | 0:2 1:1"), target)


METHODS: dict[str, Callable[[Any], Drafter]] = {"sps": sps, "eagle": eagle, "match": lambda target: TopTree()}
FAMILY = len(METHODS) * len(SETTINGS)


def window_law(sampling: Sampling) -> Row:
    p = np.stack([warp(row, sampling) for row in table(1).double().numpy()])
    return np.einsum("sa,ab,bc->sabc", p, p, p)


def decoded(method: str, sampling: Sampling, turns: int, windows: int) -> tuple[float, int, float, float]:
    """The G-test of a method's own texts, and its tokens a forward."""
    target = TableModel()
    drafter, counts, forwards = METHODS[method](target), np.zeros([VOCAB] * (LENGTH + 1)), 0
    for turn in range(turns):
        request = Request((0,), LENGTH * windows + 1, sampling=sampling, question=f"{method} {sampling}", turn=turn)
        steps = list(decode(target, drafter, request))
        ids = np.array([token for step in steps for token in step.tokens])
        places = np.arange(windows)[:, None] * LENGTH + np.arange(LENGTH + 1)
        np.add.at(counts, tuple(ids[places].T), 1)
        forwards += len(steps)
    return *g_test(counts, window_law(sampling)), turns * windows * LENGTH / forwards


# Holm's procedure over the family rejects nothing exactly when no p-value is below alpha / (size of the family).
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_windows_of_three_tokens_follow_the_targets_law(method: str, setting: str) -> None:
    statistic, freedom, p, tau = decoded(method, SETTINGS[setting], 20 if FULL else 1, TURN)
    print(f"\n{method} {setting}: G={statistic:.1f}, {freedom} degrees of freedom, p={p:.3g}; tau {tau:.2f}")
    assert tau > 1.3  # or the drafts were not at stake
    assert p > ALPHA / FAMILY


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_g_test_itself_is_calibrated(setting: str) -> None:
    law, random = window_law(SETTINGS[setting]), np.random.default_rng(0)
    sizes = np.full(VOCAB, TURN // VOCAB)
    samples = (random.multinomial(sizes, law.reshape(VOCAB, -1)).reshape(law.shape) for _ in range(400))
    assert kstest([g_test(sample, law)[2] for sample in samples], "uniform").pvalue > 1e-3


def by_probability(q: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    drawn, left = draw_siblings(q, uniforms)
    return drawn.gather(-1, q.gather(-1, drawn).argsort(-1, descending=True)), left


def one_stream(draws: Draws, use: Any, positions: Tensor, lane: int = 0, honest: Any = Draws.uniform) -> Tensor:
    return honest(draws, "draft" if use == "coin" else use, positions, lane)


PATCHES: dict[str, tuple[Any, str, Any]] = {
    "greedy draft": (methods.sps, "draw", lambda q, uniform: q.argmax(-1)),
    "siblings re-sorted": (methods.eagle, "draw_siblings", by_probability),
    "rejected sibling kept in q": (methods.decode.verify, "without", lambda q, token: q),
    "coin of the draft": (Draws, "uniform", one_stream),
    "bonus without top-p": (methods.decode.loop, "accept", accept_by(Rejection(), bonus=Sampling(1.0))),
}


def misreport(mistake: str, patch: pytest.MonkeyPatch) -> None:
    """Draft from one q and tell the verifier another."""
    told: list[Tensor] = []

    def warps(logits: Tensor, sampling: Sampling) -> Tensor:
        pair = [distribution(logits, Sampling(sampling.temperature)), distribution(logits, sampling)]
        told.append(pair.pop(0 if mistake == "top-p on p only" else 1))
        return pair[0]

    for module, method in ((methods.sps, SpS), (methods.eagle, Eagle)):

        def propose(drafter: Any, context: Context, honest: Any = method.propose) -> Draft:
            draft = honest(drafter, context)
            if draft.q is None:
                return draft
            return replace(draft, q=torch.cat([told.pop(0) for _ in told[:]]) if told else draft.q.roll(1, 0))

        patch.setattr(method, "propose", propose)
        if mistake.startswith("top-p"):
            patch.setattr(module, "distribution", warps)


PLANTED = {
    ("sps", "T=1"): "greedy draft, no residual, accept if equal, bonus from q, coin of the draft",
    ("sps", "T=0.7"): "q of the row before",
    ("sps", "top-p 0.9"): "top-p after the draw, bonus without top-p",
    ("eagle", "T=1"): "siblings re-sorted, rejected sibling kept in q, coin of the draft",
    ("eagle", "T=0.7"): "q of the row before, no residual",
    ("eagle", "top-p 0.9"): "top-p on p only, accept if equal, bonus without top-p",
    ("match", "T=1"): "redraw after mismatch",
    ("match", "top-p 0.9"): "one draw per path",
}


@pytest.mark.parametrize(
    ("method", "setting", "mistake"), [(*key, name) for key, names in PLANTED.items() for name in names.split(", ")]
)
def test_negative_control_the_g_test_rejects(
    method: str, setting: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake.startswith(("top-p", "q of")):
        misreport(mistake, monkeypatch)
    else:
        rule = accept_by(MISTAKES[mistake]) if mistake in MISTAKES else None
        monkeypatch.setattr(*PATCHES.get(mistake, (methods.decode.loop, "accept", rule)))
    statistic, freedom, p, _ = decoded(method, SETTINGS[setting], 1, CONTROL)
    print(f"\n{method} {setting}, {mistake}: G={statistic:.1f}, {freedom} degrees of freedom, p={p:.3g}")
    assert p < ALPHA / FAMILY


@pytest.mark.parametrize("method", ["sps", "eagle"])
def test_the_plain_rule_in_the_librarys_place_is_not_rejected(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the controls above fail by their mistake, not by the code that carries it.
    monkeypatch.setattr(methods.decode.loop, "accept", accept_by(Rejection()))
    assert decoded(method, SETTINGS["T=0.7"], 1, CONTROL)[2] > ALPHA / FAMILY
