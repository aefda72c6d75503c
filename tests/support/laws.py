"""A second, plain account of the acceptance rules: numpy, float64, node by node, none of the library's arithmetic.

A rule is written once, as a program that asks a ``Chance`` for coins and tokens. Answered with every possible outcome
in turn, it yields the exact law of what it emits; answered by ``Keyed``, from the library's own draws, it yields its
decisions on one input. The mistakes that a test ought to notice are subclasses of the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from scipy.stats import chi2

from methods.base import Context, Draft, Sampling
from methods.decode.draws import Draws

SETTINGS = {"T=1": Sampling(1.0), "T=0.7": Sampling(0.7), "top-p 0.9": Sampling(1.0, top_p=0.9)}
Row = np.ndarray
Tokens = tuple[int, ...]
Logits = Callable[[Tokens], Row]
"""A language model: the logits after a text."""
Chance = Any
"""``flip(probability, position, lane)`` is a bool, ``draw(law, purpose, position, lane=0)`` a token."""


def warp(logits: Row, sampling: Sampling) -> Row:
    """Temperature, then top-p: the smallest set of most likely tokens whose mass reaches p."""
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    law = weights / weights.sum()
    mass, kept = 0.0, np.zeros(len(law), bool)
    for token in np.argsort(-law, kind="stable"):
        if mass < sampling.top_p:
            kept[token] = True
        mass += law[token]
    return normalised(np.where(kept, law, 0.0))


def normalised(row: Row) -> Row:
    return row / row.sum() if row.any() else row


def without(row: Row, token: int) -> Row:
    return normalised(np.where(np.arange(len(row)) == token, 0.0, row))


@pytest.fixture(autouse=True, scope="module")
def shapes_unchecked() -> Iterator[None]:
    """Other tests check the shapes; here, at thousands of tiny forwards, that would take most of the time."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


class Keyed:
    """The library's random numbers. ``margin``: how close any of them came to deciding otherwise."""

    def __init__(self, draws: Draws) -> None:
        self.draws, self.margin = draws, math.inf

    def flip(self, probability: float, position: int, lane: int) -> bool:
        coin = self._uniform("coin", position, lane)
        if probability < 1.0:
            self.margin = min(self.margin, abs(coin - probability))
        return coin < probability

    def draw(self, law: Row, purpose: str, position: int, lane: int = 0) -> int:
        if purpose == "target":
            return self._race(law, position + 10**6 * lane)
        cdf = np.cumsum(law / law.sum())
        point = self._uniform(purpose, position, lane)
        inner = cdf[cdf < 1.0 - 1e-12]
        self.margin = min([self.margin, *np.abs(inner - point)])
        return int(np.searchsorted(inner, point, side="right"))

    def _race(self, law: Row, position: int) -> int:
        noise = self.draws.gumbel(range(position, position + 1), len(law), torch.device("cpu"))[0].double().numpy()
        with np.errstate(divide="ignore"):
            scores = np.log(law) + noise
        second, first = np.sort(scores)[-2:]
        self.margin = min(self.margin, first - second)
        return int(scores.argmax())

    def _uniform(self, purpose: str, position: int, lane: int) -> float:
        return float(self.draws.uniform(purpose, torch.tensor([position]), lane))


class Rejection:
    """Siblings drawn one after the other from q without replacement; a chain is the case of one child."""

    def drawn_from(self, drafter: Logits, text: Tokens, sampling: Sampling) -> Row:
        return warp(drafter(text), sampling)

    def told(self, drafter: Logits, text: Tokens, sampling: Sampling) -> Row:
        """The q that the verifier is told: honestly, the one that the draft is drawn from."""
        return self.drawn_from(drafter, text, sampling)

    def draft(self, q: Row, count: int, chance: Chance, position: int) -> list[int]:
        tokens = []
        for rank in range(count):
            tokens.append(chance.draw(q, "draft", position, rank) if q.any() else 0)
            q = without(q, tokens[-1])
        return tokens

    def step(self, tokens: list[int], p: Row, q: Row, chance: Chance, position: int) -> tuple[int | None, int]:
        """The rank of the accepted child, if any, and the token that this node emits."""
        for rank, token in enumerate(tokens):
            if q[token] == 0.0:
                continue  # the support of q ran out: nothing was drawn here
            if self.accepts(token, p, q, chance, position, rank):
                return rank, token
            p, q = self.residual(p, q), self.remaining(q, token)
        return None, chance.draw(p, "residual", position)

    def accepts(self, token: int, p: Row, q: Row, chance: Chance, position: int, rank: int) -> bool:
        return chance.flip(min(1.0, p[token] / q[token]), position, rank)

    def residual(self, p: Row, q: Row) -> Row:
        return normalised(np.maximum(p - q, 0.0))

    def remaining(self, q: Row, token: int) -> Row:
        return without(q, token)

    def last(self, p: Row, q: Row, chance: Chance, position: int) -> int:
        """The token after a leaf; ``q`` is that of the leaf's parent."""
        return chance.draw(p, "residual", position)


class Match(Rejection):
    """The drafter's most likely tokens; the target draws once at each node."""

    def draft(self, q: Row, count: int, chance: Chance, position: int) -> list[int]:
        return np.argsort(-q, kind="stable")[:count].tolist()

    def step(self, tokens: list[int], p: Row, q: Row, chance: Chance, position: int) -> tuple[int | None, int]:
        drawn = chance.draw(p, "target", position)
        return (tokens.index(drawn) if drawn in tokens else None), drawn

    def last(self, p: Row, q: Row, chance: Chance, position: int) -> int:
        return chance.draw(p, "target", position)


Look = Callable[[int, Tokens, int], tuple[Row, Row | None, list[int]]]
"""(node, tokens below the root so far, number of children) to (p, the q the verifier is told, children's tokens)."""


def walk(rule: Rejection, parents: Sequence[int], look: Look, chance: Chance, first: int) -> tuple[list[int], Tokens]:
    """The accepted nodes, root first, and all emitted tokens; ``first`` is the first one's absolute position."""
    path, emitted, before = [0], (), None
    while True:
        kids = [child for child, parent in enumerate(parents) if parent == path[-1]]
        p, q, tokens = look(path[-1], emitted, len(kids))
        position = first + len(emitted)
        if not kids:
            return path, (*emitted, rule.last(p, p if before is None else before, chance, position))
        rank, token = rule.step(tokens, p, q, chance, position)
        emitted, before = (*emitted, token), q
        if rank is None:
            return path, emitted
        path.append(kids[rank])


def accept_by(rule: Rejection, bonus: Sampling | None = None) -> Callable[..., tuple[list[int], list[int]]]:
    """A stand-in for ``methods.decode.verify.accept``: this rule, and after a leaf another warp if one is given."""

    def accept(draft: Draft, logits: torch.Tensor, context: Context) -> tuple[list[int], list[int]]:
        parents, tokens, rows = draft.tree.parents.tolist(), draft.tokens.tolist(), logits.double().numpy()
        inner = list(draft.q_nodes or range(len(parents)))

        def look(node: int, emitted: Tokens, count: int) -> tuple[Row, Row | None, list[int]]:
            if not count:
                return warp(rows[node], bonus or context.sampling), None, []
            kids = [token for token, parent in zip(tokens, parents, strict=True) if parent == node]
            q = None if draft.q is None else draft.q[inner.index(node)].double().numpy()
            return warp(rows[node], context.sampling), q, kids

        path, emitted = walk(rule, parents, look, Keyed(context.draws), len(context.ids))
        return path, list(emitted)

    return accept


def g_test(windows: Row, law: Row) -> tuple[float, int, float]:
    """Statistic, degrees of freedom and p-value of counts[state, a, b, c] against law[state, a, b, c].

    Cells that expect fewer than ten windows are pooled, state by state; Williams' correction.
    """
    statistic, freedom = 0.0, 0
    for counts, shares in zip(windows.reshape(len(windows), -1), law.reshape(len(law), -1), strict=True):
        expected = counts.sum() * shares
        if counts[expected == 0.0].any():
            return np.inf, 1, 0.0  # what the target never says
        large = expected >= 10.0
        if large.sum() < 2:
            continue
        seen, due = ([*each[large], each[~large].sum()] for each in (counts, expected))
        if due[-1] < 10.0:  # the pool is small itself: it joins the last cell
            seen, due = ([*each[:-2], sum(each[-2:])] for each in (seen, due))
        o, e = np.array(seen, float), np.array(due)
        g = 2.0 * (o[o > 0] * np.log(o[o > 0] / e[o > 0])).sum()
        correction = 1.0 + ((e.sum() / e).sum() - 1.0) / (6.0 * e.sum() * (len(e) - 1))
        statistic += float(g / correction)
        freedom += len(e) - 1
    return statistic, freedom, float(chi2.sf(statistic, freedom))


def planted(base: type[Rejection] = Rejection, **changed: Callable[..., Any]) -> Rejection:
    return type("Planted", (base,), changed)()


def redraw(rule: Match, tokens: list[int], p: Row, q: Row, chance: Chance, position: int) -> tuple[int | None, int]:
    rank, drawn = Match.step(rule, tokens, p, q, chance, position)
    return rank, drawn if rank is not None else chance.draw(p, "residual", position)


def draw_per_path(
    rule: Match, tokens: list[int], p: Row, q: Row, chance: Chance, position: int
) -> tuple[int | None, int]:
    for rank, token in enumerate(tokens):
        drawn = chance.draw(p, "target", position, rank)
        if drawn == token:
            return rank, token
    return None, drawn


MISTAKES = {
    "q of the row before": planted(told=lambda _, drafter, text, sampling: warp(drafter(text[:-1]), sampling)),
    "top-p on p only": planted(told=lambda _, drafter, text, sampling: warp(drafter(text), Sampling(1.0))),
    "greedy draft": planted(draft=Match.draft),
    "siblings re-sorted": planted(
        draft=lambda rule, q, *rest: sorted(Rejection.draft(rule, q, *rest), key=lambda token: -q[token])
    ),
    "low q dropped": planted(
        draft=lambda rule, q, *rest: [token for token in Rejection.draft(rule, q, *rest) if q[token] >= 0.3]
    ),
    "no residual": planted(residual=lambda _, p, q: p),
    "rejected sibling kept in q": planted(remaining=lambda _, q, token: q),
    "accept if equal": planted(
        accepts=lambda rule, token, p, *rest: token == p.argmax() or Rejection.accepts(rule, token, p, *rest)
    ),
    "bonus from q": planted(last=lambda _, p, q, chance, position: chance.draw(q, "residual", position)),
    "bonus at T=1": planted(last=lambda _, p, q, chance, position: chance.draw(p**0.7, "residual", position)),
    "redraw after mismatch": planted(Match, step=redraw),
    "one draw per path": planted(Match, step=draw_per_path),
}
"""Rules that are wrong in one place. "bonus at T=1" is written for a target at T=0.7, "top-p on p only" for T=1."""
