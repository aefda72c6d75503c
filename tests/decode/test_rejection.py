"""The two rejection rules against their exact law, on vocabularies small enough to enumerate.

No sampling is needed. A rule is a function of its draft, its coins and its residual uniform, and it is constant between
thresholds that the textbook formula names. So each draft is weighted by its probability under q, each cell between
thresholds by its length, and the rule is asked just inside the edges of every cell: a threshold that lies elsewhere, or
another token, shows up as a wrong law.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from methods.base import Context, Draft, Sampling
from methods.decode.draws import Draws
from methods.decode.sampling import distribution, draw_siblings
from methods.decode.tree import from_list
from methods.decode.verify import accept
from tests.support.models import parent_lists

CPU = torch.device("cpu")
ROOT = 4
SAMPLED = Sampling(1.0)
Prefix = tuple[int, ...]
Laws = dict[Prefix, np.ndarray]
"""The distribution of the next token after every prefix."""


class ChosenDraws(Draws):
    """Uniforms that the test chose: one for all residual draws, and a coin per (position, lane)."""

    def __init__(self, residual: float, coins: dict[tuple[int, int], float]) -> None:
        self.residual, self.coins = residual, coins

    def uniform(self, purpose: str, positions: torch.Tensor, lane: int = 0) -> torch.Tensor:
        values = {
            "residual": [self.residual] * positions.numel(),
            "coin": [self.coins.get((position, lane), 0.5) for position in positions.flatten().tolist()],
        }
        return torch.tensor(values[purpose], dtype=torch.float64).view(positions.shape)


def context(sampling: Sampling, draws: Draws) -> Context:
    return Context([0] * (ROOT + 1), 99, sampling, draws)


def normalised(row: np.ndarray) -> np.ndarray:
    return row / row.sum() if row.sum() > 0 else row


def zeroed(row: np.ndarray, token: int) -> np.ndarray:
    return normalised(np.where(np.arange(len(row)) == token, 0.0, row))


def random_laws(vocab: int, length: int, seed: int) -> Laws:
    """Small whole numbers as weights: ties between laws, and tokens of zero mass (as after top-k), are common."""
    random = np.random.default_rng(seed)
    laws = {}
    for size in range(length + 1):
        for prefix in itertools.product(range(vocab), repeat=size):
            row = random.integers(0, 5, vocab).astype(float)
            laws[prefix] = normalised(row if row.any() else np.ones(vocab))
    return laws


def drafts(parents: list[int], q: Laws) -> Iterator[tuple[list[Prefix], float]]:
    """Every draft of this tree shape with its probability: siblings drawn from q in turn, without replacement."""

    def grow(prefixes: list[Prefix], weight: float) -> Iterator[tuple[list[Prefix], float]]:
        node = len(prefixes)
        if node == len(parents):
            yield prefixes, weight
            return
        above, left = prefixes[parents[node]], q[prefixes[parents[node]]]
        for older in range(1, node):
            if parents[older] == parents[node]:
                left = zeroed(left, prefixes[older][-1])
        if not left.any():
            yield from grow([*prefixes, (*above, 0)], weight)  # the support ran out: what draw_siblings puts there
        for token in np.flatnonzero(left):
            yield from grow([*prefixes, (*above, int(token))], weight * left[token])

    return grow([()], 1.0)


def cells(
    parents: list[int], prefixes: list[Prefix], p: Laws, q: Laws, node: int = 0
) -> Iterator[tuple[float, dict[tuple[int, int], float], np.ndarray]]:
    """Cells of the coins under the textbook rule: weight, coins just inside, and the law of the token that ends it."""
    left_p, left_q = p[prefixes[node]], q.get(prefixes[node])
    position, weight, coins = ROOT + 1 + len(prefixes[node]), 1.0, {}
    for rank, child in enumerate(child for child, parent in enumerate(parents) if parent == node):
        token = prefixes[child][-1]
        if left_q[token] == 0.0:
            continue
        edge = min(1.0, left_p[token] / left_q[token])
        if edge > 0.0:
            just_below = {(position, rank): edge - min(1e-3, edge / 4)}
            for share, more, last in cells(parents, prefixes, p, q, child):
                yield weight * edge * share, coins | just_below | more, last
        if edge == 1.0:
            return
        coins = coins | {(position, rank): edge + min(1e-3, (1 - edge) / 4)}
        weight *= 1 - edge
        left_p, left_q = normalised(np.maximum(left_p - left_q, 0.0)), zeroed(left_q, token)
    yield weight, coins, left_p


def emitted_law(
    rule: str,
    parents: list[int],
    p: Laws,
    q: Laws,
    length: int,
    sampling: Sampling = SAMPLED,
    drafted: Callable[..., Iterator[tuple[list[Prefix], float]]] = drafts,
) -> dict[Prefix, float]:
    """What the rule emits, continued by the target itself up to ``length`` tokens."""
    law: dict[Prefix, float] = defaultdict(float)
    inner = sorted({parent for parent in parents if parent >= 0})
    for prefixes, chance in drafted(parents, q):
        draft = Draft(
            torch.tensor([0, *(prefix[-1] for prefix in prefixes[1:])]),
            from_list(parents, CPU),
            rule=rule,
            q=torch.tensor(np.stack([q[prefixes[node]] for node in inner])).float() if inner else None,
            q_nodes=tuple(inner),
        )
        # The rule warps the logits itself: undo the temperature, so that p is what it sees.
        logits = torch.tensor(np.stack([p[prefix] for prefix in prefixes])).log() * sampling.temperature
        for share, coins, last in cells(parents, prefixes, p, q):
            edges = [0.0, *np.cumsum(last)[:-1], 1.0]
            for low, high in itertools.pairwise(edges):
                margin = min(1e-3, (high - low) / 4)
                for residual in (low + margin, high - margin) if high > low else ():
                    _, tokens = accept(draft, logits, context(sampling, ChosenDraws(residual, coins)))
                    extend(law, tuple(tokens), chance * share * (high - low) / 2, p, length)
    return law


def extend(law: dict[Prefix, float], emitted: Prefix, mass: float, p: Laws, length: int) -> None:
    if len(emitted) == length:
        law[emitted] += mass
        return
    for token, share in enumerate(p[emitted]):
        if share > 0:
            extend(law, (*emitted, token), mass * share, p, length)


def distance(law: dict[Prefix, float], p: Laws, length: int) -> float:
    """Largest difference to the target's own law of ``length`` tokens."""
    own: dict[Prefix, float] = defaultdict(float)
    extend(own, (), 1.0, p, length)
    return max(abs(law.get(key, 0.0) - own.get(key, 0.0)) for key in {*law, *own})


def depth(parents: list[int]) -> int:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)


sampled = st.sampled_from([SAMPLED, Sampling(0.5)])


@settings(max_examples=60)
@given(st.integers(0, 2), st.integers(0, 9999), sampled)
def test_the_chain_rule_emits_exactly_the_targets_law(drafted: int, seed: int, sampling: Sampling) -> None:
    p, q = random_laws(3, drafted, seed), random_laws(3, drafted, seed + 1)
    law = emitted_law("chain", list(range(-1, drafted)), p, q, drafted + 1, sampling)
    assert distance(law, p, drafted + 1) < 1e-9


@settings(max_examples=60)
@given(st.integers(0, 4), st.integers(0, 9999), sampled)
def test_siblings_without_replacement_emit_exactly_the_targets_law(k: int, seed: int, sampling: Sampling) -> None:
    p, q = random_laws(4, 1, seed), random_laws(4, 1, seed + 1)
    law = emitted_law("siblings", [-1] + [0] * k, p, q, 2, sampling)
    assert distance(law, p, 2) < 1e-9


@settings(max_examples=50)
@given(parent_lists(min_size=3, max_size=5), st.integers(0, 9999))
def test_a_tree_of_siblings_emits_exactly_the_targets_law(parents: list[int], seed: int) -> None:
    length = depth(parents) + 1
    p, q = random_laws(3, length, seed), random_laws(3, length, seed + 1)
    assert distance(emitted_law("siblings", parents, p, q, length), p, length) < 1e-9


@pytest.mark.parametrize(("rule", "parents"), [("chain", [-1, 0, 1]), ("siblings", [-1, 0, 0, 1])])
def test_a_draft_from_the_targets_own_law_is_always_accepted(rule: str, parents: list[int]) -> None:
    p = random_laws(3, 2, 0)
    for prefixes, _ in drafts(parents, p):
        tokens = torch.tensor([0, *(prefix[-1] for prefix in prefixes[1:])])
        inner = [0, 1]
        q = distribution(torch.tensor(np.stack([p[prefixes[node]] for node in inner])).log(), SAMPLED)
        draft = Draft(tokens, from_list(parents, CPU), rule=rule, q=q, q_nodes=(0, 1))
        logits = torch.tensor(np.stack([p[prefix] for prefix in prefixes])).log()
        coins = {(position, 0): 1 - 2.0**-53 for position in range(ROOT + 1, ROOT + 3)}
        path, _ = accept(draft, logits, context(SAMPLED, ChosenDraws(0.5, coins)))
        assert len(path) == 3


@pytest.mark.parametrize("rule", ["chain", "siblings"])
def test_without_a_drafted_token_the_root_is_kept_and_the_targets_own_draw_follows(rule: str) -> None:
    draft = Draft(torch.tensor([0]), from_list([-1], CPU), rule=rule)
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for residual, token in ((0.1, 0), (0.6, 1), (0.8, 2), (0.95, 3)):
        assert accept(draft, logits, context(SAMPLED, ChosenDraws(residual, {}))) == ([0], [token])


@pytest.mark.parametrize("rule", ["chain", "siblings"])
def test_no_coin_accepts_a_token_that_the_target_never_draws(rule: str) -> None:
    # The smallest coin there is, 0, is the case that tells u q < p from u q <= p.
    q, logits = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).log()
    draft = Draft(torch.tensor([0, 0]), from_list([-1, 0], CPU), rule=rule, q=q, q_nodes=(0,))
    coins = {(ROOT + 1, 0): 0.0}
    assert accept(draft, logits, context(SAMPLED, ChosenDraws(0.5, coins))) == ([0], [1])


def test_negative_control_a_greedy_draft_with_softmax_q_is_lossy() -> None:
    # The worked example of huggingface/transformers#32867: q is reported, but its argmax is what was drafted.
    p = {(): np.array([0.5, 0.3, 0.2])} | {(token,): np.array([1.0, 0.0, 0.0]) for token in range(3)}
    q = {(): np.array([0.6, 0.3, 0.1])}
    law = emitted_law("chain", [-1, 0], p, q, 2, drafted=lambda parents, q: iter([([(), (0,)], 1.0)]))
    first = np.array([sum(mass for key, mass in law.items() if key[0] == token) for token in range(3)])
    assert np.allclose(first, [5 / 6, 0.0, 1 / 6])


def test_negative_control_siblings_sorted_after_the_draw_are_lossy() -> None:
    p, q = random_laws(4, 1, 2), random_laws(4, 1, 3)

    def by_probability(parents: list[int], q: Laws) -> Iterator[tuple[list[Prefix], float]]:
        for (root, *siblings), chance in drafts(parents, q):
            yield [root, *sorted(siblings, key=lambda prefix: -q[()][prefix[-1]])], chance

    assert distance(emitted_law("siblings", [-1, 0, 0], p, q, 2), p, 2) < 1e-9
    assert distance(emitted_law("siblings", [-1, 0, 0], p, q, 2, drafted=by_probability), p, 2) > 1e-3


@pytest.mark.usefixtures("unchecked_shapes")
def test_drawn_and_verified_with_the_real_draws_of_many_turns_the_law_is_the_targets() -> None:
    # The enumeration chose its uniforms; this asks whether the streams of draft, coin and residual are independent.
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    tree, position = from_list([-1, 0, 0], CPU), torch.tensor([ROOT + 1])
    logits = p.log().expand(3, 4)
    counts = np.zeros(4)
    for turn in range(3000):
        draws = Draws(0, "0", turn, ROOT + 3)
        uniforms = torch.stack([draws.uniform("draft", position, lane) for lane in range(2)])
        siblings, _ = draw_siblings(q[None], uniforms)
        draft = Draft(torch.cat([torch.tensor([0]), siblings[0]]), tree, rule="siblings", q=q[None], q_nodes=(0,))
        counts[accept(draft, logits, context(SAMPLED, draws))[1][0]] += 1
    assert chisquare(counts, [1200, 900, 600, 300]).pvalue > 1e-6
