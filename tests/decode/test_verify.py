"""``match`` against a walk from node to node. The rejection rules have their own file, test_rejection.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from methods.base import Context, Draft, Sampling
from methods.decode.draws import Draws
from methods.decode.tree import chain, from_list
from methods.decode.verify import accept
from tests.support.models import parent_lists

CPU = torch.device("cpu")
ROOT = 4
"""Position of the root in these tests: some text lies before it."""


def context(sampling: Sampling, draws: Draws) -> Context:
    return Context([0] * (ROOT + 1), 99, sampling, draws)


def slow_walk(parents: list[int], tokens: list[int], drawn: list[int]) -> tuple[list[int], list[int]]:
    path = [0]
    while True:
        children = [node for node in range(len(parents)) if parents[node] == path[-1]]
        hits = [node for node in children if tokens[node] == drawn[path[-1]]]
        if not hits:
            return path, [drawn[node] for node in path]
        path.append(hits[0])


@given(parent_lists(max_size=14), st.sampled_from([0.0, 0.5, 1.0]), st.data())
def test_match_walks_while_a_child_holds_the_targets_token(
    parents: list[int], temperature: float, data: st.DataObject
) -> None:
    # Few tokens and few logit values: ties, and siblings that hold the same token, are the rule and not the exception.
    vocab = data.draw(st.integers(2, 3))
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=len(parents), max_size=len(parents)))
    logits = torch.tensor([[float(data.draw(st.integers(0, 2))) for _ in range(vocab)] for _ in parents])
    sampling, draws = Sampling(temperature), Draws(data.draw(st.integers(0, 9)), "0", 0, 40)
    drawn = []
    for node in range(len(parents)):
        depth, up = 0, node
        while parents[up] >= 0:
            depth, up = depth + 1, parents[up]
        if temperature == 0.0:
            drawn.append(logits[node].tolist().index(float(logits[node].max())))
        else:
            noise = draws.gumbel(range(ROOT + 1 + depth, ROOT + 2 + depth), vocab, CPU)[0]
            race = (logits[node] / temperature + noise).tolist()
            drawn.append(race.index(max(race)))
    draft = Draft(torch.tensor(tokens), from_list(parents, CPU))
    assert accept(draft, logits, context(sampling, draws)) == slow_walk(parents, tokens, drawn)


def test_match_ignores_logits_of_rows_behind_the_tree_and_rules_do_not_matter_when_greedy() -> None:
    tree = from_list([-1, 0, 0], CPU)
    logits = torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0], [9.0, 9.0, 9.0]])
    for rule in ("match", "chain", "siblings"):
        draft = Draft(torch.tensor([0, 2, 1, 1]), tree, rule=rule, q=torch.ones(1, 3) / 3, q_nodes=(0,))
        assert accept(draft, logits, context(Sampling(), Draws(0, "0", 0, 9))) == ([0, 2], [1, 2])


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_mismatching_draw_is_emitted_itself_and_not_drawn_again() -> None:
    # p=(.5, .3, .2) with the child {0}: a second draw after the mismatch would emit (.75, .15, .10).
    logits = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]).log()
    draft = Draft(torch.tensor([0, 0]), chain(1, CPU))
    counts = np.zeros(3)
    for turn in range(2000):
        counts[accept(draft, logits, context(Sampling(1.0), Draws(0, "0", turn, 8)))[1][0]] += 1
    assert chisquare(counts, [1000, 600, 400]).pvalue > 1e-6


@pytest.mark.parametrize("rule", ["match", "chain", "siblings"])
def test_every_tensor_of_a_rule_is_made_where_the_logits_are(rule: str) -> None:
    tree = chain(2, CPU) if rule == "chain" else from_list([-1, 0, 0], CPU)
    q = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])
    draft = Draft(torch.tensor([0, 2, 1]), tree, rule=rule, q=q if rule == "chain" else q[:1], q_nodes=(0,))
    logits = torch.tensor([[0.5, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    for turn in range(8):
        asked = context(Sampling(1.0), Draws(0, "0", turn, 9))
        expected = accept(draft, logits, asked)
        with torch.device("meta"):  # whatever names no device is made there, and holds nothing
            assert accept(draft, logits, context(Sampling(1.0), Draws(0, "0", turn, 9))) == expected
