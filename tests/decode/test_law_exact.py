"""The exact law of three tokens, decoded cycle after cycle, under each acceptance rule.

Two halves. The plain rules of ``laws`` are lossless: every outcome of coins and draws is enumerated and the sum is the
target's law. And the library follows them: on thousands of random inputs it warps, drafts and decides as they do. The
same two checks are then shown to notice every planted mistake.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch

import methods.decode.verify
from methods.base import Context, Draft, Sampling
from methods.decode.draws import Draws
from methods.decode.sampling import distribution, draw, draw_siblings
from methods.decode.topk import top
from methods.decode.tree import from_list
from tests.support import laws
from tests.support.laws import (
    MISTAKES,
    SETTINGS,
    Chance,
    Keyed,
    Logits,
    Match,
    Rejection,
    Row,
    Tokens,
    planted,
    walk,
    warp,
)

pytestmark = pytest.mark.slow

shapes_unchecked = laws.shapes_unchecked
LENGTH = 3
RULES = {"chain": Rejection(), "siblings": Rejection(), "match": Match()}
TREES = {"chain": [-1, 0, 1], "siblings": [-1, 0, 0, 1, 1], "match": [-1, 0, 0, 1, 1]}
VOCAB = {"chain": 5, "siblings": 4, "match": 5}


class Branch:
    """One run of a random program: follows a script, then takes the first possible outcome and notes the others."""

    def __init__(self, script: Tokens) -> None:
        self.script, self.weight, self.untried = script, 1.0, []
        self.taken: Tokens = ()

    def flip(self, probability: float, position: int, lane: int) -> bool:
        return self._choose([1.0 - probability, probability]) == 1

    def draw(self, law: Row, purpose: str, position: int, lane: int = 0) -> int:
        return self._choose((law / law.sum()).tolist())

    def _choose(self, chances: list[float]) -> int:
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice, *others = [outcome for outcome, chance in enumerate(chances) if chance > 0.0]
            self.untried += [(*self.taken, other) for other in others]
        self.taken += (choice,)
        self.weight *= chances[choice]
        return choice


def branches(program: Callable[[Chance], Tokens]) -> Iterator[tuple[Tokens, float]]:
    """Every outcome of a random program with its probability."""
    pending: list[Tokens] = [()]
    while pending:
        branch = Branch(pending.pop())
        yield program(branch), branch.weight
        pending += branch.untried


def emitted_law(
    rule: Rejection, parents: list[int], target: Logits, drafter: Logits, sampling: Sampling
) -> dict[Tokens, float]:
    """The law of the first tokens of a text that is decoded under this rule."""

    @cache
    def laws_after(here: Tokens) -> tuple[Row, Row, Row]:
        drawn = rule.drawn_from(drafter, here, sampling)
        return warp(target(here), sampling), drawn, rule.told(drafter, here, sampling)

    @cache
    def cycle(text: Tokens) -> dict[Tokens, float]:
        def program(chance: Chance) -> Tokens:
            def look(node: int, emitted: Tokens, count: int) -> tuple[Row, Row | None, list[int]]:
                p, drawn, told = laws_after(text + emitted)
                tokens = rule.draft(drawn, count, chance, len(text) + len(emitted)) if count else []
                return p, told, tokens

            return walk(rule, parents, look, chance, len(text))[1]

        law: dict[Tokens, float] = defaultdict(float)
        for emitted, weight in branches(program):
            law[(text + emitted)[:LENGTH]] += weight
        return law

    done: dict[Tokens, float] = defaultdict(float)
    pending: list[tuple[Tokens, float]] = [((), 1.0)]
    while pending:
        text, weight = pending.pop()
        for longer, chance in cycle(text).items():
            if len(longer) == LENGTH:
                done[longer] += weight * chance
            else:
                pending.append((longer, weight * chance))
    return done


def model(vocab: int, seed: int) -> Logits:
    """A language model of random logits, another row after every text."""
    return cache(lambda text: 1.5 * np.random.default_rng([seed, *text]).standard_normal(vocab))


def error(rule: Rejection, kind: str, sampling: Sampling, seed: int = 0) -> float:
    """Total variation between what the rule emits and the target's own law."""
    vocab = VOCAB[kind]
    target, drafter = model(vocab, seed), model(vocab, seed + 1000)
    law = emitted_law(rule, TREES[kind], target, drafter, sampling)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    total = 0.0
    for text in itertools.product(range(vocab), repeat=LENGTH):
        own = np.prod([warp(target(text[:i]), sampling)[text[i]] for i in range(LENGTH)])
        total += abs(law.get(text, 0.0) - own) / 2
    return float(total)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", RULES)
def test_item_9_the_law_of_three_tokens_is_exactly_the_targets(kind: str, setting: str) -> None:
    assert error(RULES[kind], kind, SETTINGS[setting]) < 1e-12


PLANTED = {
    ("chain", "T=1"): "q of the row before, greedy draft, no residual, accept if equal, bonus from q",
    ("chain", "T=0.7"): "low q dropped",
    ("chain", "top-p 0.9"): "top-p on p only",
    ("siblings", "T=1"): "siblings re-sorted, rejected sibling kept in q, bonus from q",
    ("siblings", "T=0.7"): "q of the row before, no residual, bonus at T=1",
    ("siblings", "top-p 0.9"): "top-p on p only, accept if equal",
    ("match", "T=1"): "redraw after mismatch",
    ("match", "top-p 0.9"): "one draw per path",
}


@pytest.mark.parametrize(
    ("kind", "setting", "mistake"), [(*key, name) for key, names in PLANTED.items() for name in names.split(", ")]
)
def test_negative_control_the_enumeration_notices(kind: str, setting: str, mistake: str) -> None:
    assert error(MISTAKES[mistake], kind, SETTINGS[setting]) > 1e-2


@pytest.mark.parametrize("kind", ["chain", "siblings"])
def test_a_draft_warped_otherwise_than_the_target_is_lossless_if_its_q_says_so(kind: str) -> None:
    unwarped = planted(drawn_from=lambda _, drafter, text, sampling: warp(drafter(text), Sampling(1.0)))
    assert error(unwarped, kind, SETTINGS["top-p 0.9"]) < 1e-12


SHAPES = {
    "chain": [[-1], [-1, 0], [-1, 0, 1], [-1, 0, 1, 2, 3]],
    "siblings": [[-1, 0, 0], [-1, 0, 0, 0, 0], [-1, 0, 0, 0, 1, 1, 2, 4], [-1, 0, 1, 1, 1, 2, 2]],
    "match": [[-1], [-1, 0, 0], [-1, 0, 0, 0, 1, 1, 2, 4], [-1, 0, 1, 1, 1, 2, 2]],
}
INPUTS = 7000


def random_rows(random: np.random.Generator, nodes: int, vocab: int, like: Row | None = None) -> Row:
    """Logits of every node. Awkward ones are common: the other model's, two possible tokens, only one."""
    rows = (2.0 * random.standard_normal((nodes, vocab))).astype(np.float32)
    for row, kind in enumerate(random.integers(6, size=nodes)):
        if kind < 2:
            rows[row, random.permutation(vocab)[kind + 1 :]] = -np.inf
        elif kind == 2 and like is not None:
            rows[row] = like[row]
    return rows


def library(kind: str, parents: list[int], logits: Row, drafts: Row, context: Context) -> Tokens:
    """Draft and verify as the methods do; returns the tokens of the path and the one after it."""
    tree = from_list(parents, torch.device("cpu"))
    tokens, q, inner = torch.zeros(len(parents), dtype=torch.long), None, sorted({*parents} - {-1})
    if inner:
        q = distribution(torch.from_numpy(drafts[inner]), context.sampling)
        positions = tree.depths[inner] + context.root_position + 1
        ranks = [parents[:child].count(parents[child]) for child in range(1, len(parents))]
        lanes = [context.draws.uniform("draft", positions, lane) for lane in range(max(ranks) + 1)]
        if kind == "match":
            drawn = top(q, len(lanes))
        elif kind == "chain":
            drawn = draw(q, lanes[0])[:, None]
        else:
            drawn = draw_siblings(q, torch.stack(lanes))[0]
        tokens[1:] = drawn[[inner.index(parent) for parent in parents[1:]], ranks]
    draft = Draft(tokens, tree, kind, q=q, q_nodes=tuple(inner))
    return tuple(methods.decode.verify.accept(draft, torch.from_numpy(logits), context)[1])


def plainly(kind: str, parents: list[int], logits: Row, drafts: Row, context: Context) -> tuple[Tokens, float]:
    """The same by the plain rule, and how close it was to another outcome."""
    rule, chance = RULES[kind], Keyed(context.draws)

    def look(node: int, emitted: Tokens, count: int) -> tuple[Row, Row | None, list[int]]:
        p = warp(logits[node].astype(float), context.sampling)
        if not count:
            return p, None, []
        q = warp(drafts[node].astype(float), context.sampling)
        return p, q, rule.draft(q, count, chance, len(context.ids) + len(emitted))

    return walk(rule, parents, look, chance, len(context.ids))[1], chance.margin


def disagreements(kind: str, inputs: int) -> tuple[int, int]:
    """Inputs that the library decides otherwise than the plain rule, and inputs that rounding decides."""
    random, wrong, close = np.random.default_rng(7), 0, 0
    for index in range(inputs):
        if index % 100 == 0:
            draws = Draws(0, kind, index, 1000)
        parents = SHAPES[kind][index % len(SHAPES[kind])]
        logits = random_rows(random, len(parents), 5)
        drafts = random_rows(random, len(parents), 5, logits)
        sampling = list(SETTINGS.values())[index // 4 % 3]
        context = Context([0] * (1 + 8 * (index % 100)), 99, sampling, draws)
        text, margin = plainly(kind, parents, logits, drafts, context)
        if margin < 1e-6:
            close += 1
        elif library(kind, parents, logits, drafts, context) != text:
            wrong += 1
    return wrong, close


@pytest.mark.parametrize("kind", RULES)
def test_the_library_decides_as_the_plain_rule_does(kind: str) -> None:
    wrong, close = disagreements(kind, INPUTS)
    assert wrong == 0
    assert close < INPUTS / 1000


@pytest.mark.parametrize(
    ("name", "planted", "kind"),
    [
        ("without", lambda q, token: q, "siblings"),  # a rejected sibling stays in q
        ("draw", lambda law, uniform: law.argmax(-1), "chain"),  # the residual's likeliest token instead of a draw
        ("_NO_MASS", 0.4, "chain"),  # p and q that are merely close count as equal
        ("distribution", lambda logits, sampling: distribution(logits, Sampling(1.0)), "siblings"),  # p is not warped
    ],
    ids=["without", "residual", "close", "unwarped"],
)
def test_negative_control_a_library_that_decides_otherwise_is_noticed(
    name: str, planted: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods.decode.verify, name, planted)
    assert disagreements(kind, 500)[0] > 0
