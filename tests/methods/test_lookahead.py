"""Lookahead: its window against plain forwards of each column, its mask against the rule, its pool against a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods
from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.lookahead import NgramPool
from tests.support.models import random_prompts, run, tiny_llama


@dataclass(frozen=True)
class Cycle:
    """What was proposed, and from what."""

    ids: list[int]
    remaining: int
    draft: Draft


class Recorded:
    """A drafter whose proposals are written down."""

    rejection = False

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.max_rows = drafter, drafter.max_rows

    def begin(self, request: Request, prefill: Prefill) -> None:
        self.cycles: list[Cycle] = []
        self.drafter.begin(request, prefill)

    def propose(self, context: Context) -> Draft:
        draft = self.drafter.propose(context)
        self.cycles.append(Cycle(list(context.ids), context.remaining, draft))
        return draft

    def observe(self, outcome: Outcome) -> None:
        self.drafter.observe(outcome)


def record(target: Target, request: Request, **knobs: Any) -> list[Cycle]:
    recorded = Recorded(methods.load("lookahead", knobs, target))
    run(target, recorded, request)
    return recorded.cycles


def shape(cycle: int, window: int, ngram: int) -> tuple[int, int]:
    """(levels, columns) of the window: it starts as one long level and loses a column per new level."""
    levels = min(cycle + 1, ngram - 1)
    return levels, window + ngram - 1 - levels


@pytest.fixture(scope="module")
def small() -> Target:
    return Target(tiny_llama(layers=1, vocab_size=12))


@pytest.fixture(scope="module")
def counter() -> Target:
    """A Llama that counts to six and starts over: after token t comes (t + 1) % 6, whatever stood before."""
    model = tiny_llama(layers=1, vocab_size=32)
    for name, weight in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(32))
    model.lm_head.weight.copy_(torch.zeros(32, 32))
    for token in range(32):
        model.lm_head.weight[(token + 1) % 6, token] = 50.0
    return Target(model)


def test_the_window_fills_to_w_columns_of_n_minus_1_levels(small: Target) -> None:
    prompt = random_prompts(1, lengths=[8], vocab=12)[0]
    cycles = record(small, Request(prompt, 16), window=7, ngram=5, guesses=7)
    in_window = [cycle.draft.rows - cycle.draft.tree.size + 1 for cycle in cycles]
    assert in_window[:6] == [10, 18, 24, 28, 28, 28]  # the root is the window's first cell: 28 = 1 + 6 + 7 + 7 + 7
    assert all(cycle.draft.tree.size == 1 for cycle in cycles[:4])  # nothing is guessed while the pool is empty


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(7, 5, 7), (4, 3, 3), (2, 2, 5), (1, 4, 2), (3, 6, 1)])
def test_rows_of_a_forward_stay_within_what_the_paper_counts(
    small: Target, window: int, ngram: int, guesses: int
) -> None:
    for prompt in random_prompts(4, lengths=[3, 12], vocab=12):
        for number, cycle in enumerate(record(small, Request(prompt, 30), window=window, ngram=ngram, guesses=guesses)):
            levels, columns = shape(number, window, ngram)
            assert cycle.draft.rows <= levels * columns + guesses * (ngram - 1)
            assert cycle.draft.rows == levels * columns + cycle.draft.tree.size - 1


def test_the_window_begins_with_tokens_of_the_prompt_that_only_the_key_decides(small: Target) -> None:
    first = [
        record(small, Request((3, 5), 3, question=question), window=6)[0].draft.tokens[1:].tolist()
        for question in ("a", "a", "b")
    ]
    assert set(first[0]) == {3, 5}
    assert first[0] == first[1] != first[2]


@pytest.mark.parametrize(("window", "ngram"), [(4, 4), (3, 2), (1, 3), (5, 3)])
@pytest.mark.parametrize("model", ["counter", "small"])
def test_each_row_sees_exactly_what_the_rule_allows(
    request: pytest.FixtureRequest, model: str, window: int, ngram: int
) -> None:
    # The counter has one long guess for a token, the random model several that fork.
    turn = Request(tuple(range(6)) * 2, 40)
    cycles = record(request.getfixturevalue(model), turn, window=window, ngram=ngram, guesses=4)
    assert max(cycle.draft.tree.size for cycle in cycles) > 1
    for number, cycle in enumerate(cycles):
        draft, (levels, columns) = cycle.draft, shape(number, window, ngram)
        newest_first = [levels - 1, *range(levels - 1)]
        cells = [(level, column) for level in newest_first for column in range(columns) if (level, column) != (0, 0)]
        labels: list[Any] = [*range(draft.tree.size), *cells]

        def sees(row: Any, key: Any, parents: list[int]) -> bool:
            if key == 0:
                return True  # everyone sees the root, which is cell (0, 0) too
            if isinstance(row, int) and isinstance(key, int):
                return row == key or (row > 0 and sees(parents[row], key, parents))
            if isinstance(row, int) or isinstance(key, int):
                return False
            (level, column), (key_level, key_column) = row, key
            if key_level == 0:
                return key_column <= column
            return key_column == column and key_level <= level

        parents = draft.tree.parents.tolist()
        assert draft.mask.tolist() == [[sees(row, key, parents) for key in labels] for row in labels]
        assert draft.offsets.tolist() == [*draft.tree.depths.tolist(), *(sum(cell) for cell in cells)]


def test_the_pool_is_filled_by_what_each_column_reads_like_alone(small: Target) -> None:
    # A slow window: one plain forward per column and cycle. Its pool must guess what the drafts guessed.
    window, ngram, guesses, guessed_any = 3, 3, 2, False
    for prompt in random_prompts(6, lengths=[4, 10], vocab=12):
        cycles = record(small, Request(prompt, 40), window=window, ngram=ngram, guesses=guesses)
        pool: dict[int, list[tuple[int, ...]]] = {}
        grid = [[0, *cycles[0].draft.tokens[1:].tolist()]]
        for cycle in cycles:
            grid[0][0] = root = cycle.ids[-1]
            full = len(grid) == ngram - 1
            known = [guess[: cycle.remaining - 1] for guess in pool.get(root, [])] if full else []
            guessed_any |= bool(known)
            assert paths(cycle.draft) == {guess[: k + 1] for guess in known for k in range(len(guess))}

            newest = []
            for column in range(len(grid[0])):
                text = [*cycle.ids, *grid[0][1 : column + 1], *(row[column] for row in grid[1:])]
                newest.append(int(small.model(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
            if not full:
                grid = [row[1:] for row in [*grid, newest]]
                continue
            for key, *rest in zip(*grid, newest, strict=True):
                slow_add(pool.setdefault(key, []), tuple(rest), guesses)
            grid = [*(list(row) for row in grid[1:]), newest]
    assert guessed_any


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """Every node but the root as the tokens that lead to it."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, draft.tree.size):
        found.append((*found[int(draft.tree.parents[node])], int(draft.tokens[node])))
    assert len(set(found)) == len(found)  # guesses with a common prefix share its rows
    return set(found[1:])


def slow_add(known: list[tuple[int, ...]], ngram: tuple[int, ...], size: int) -> None:
    if ngram in known:
        known.remove(ngram)
    known.append(ngram)
    del known[:-size]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), max_size=30), st.integers(1, 4))
def test_the_pool_keeps_the_latest_found_of_each_first_token(added: list[tuple[int, int]], size: int) -> None:
    pool, slow = NgramPool(size), {0: [], 1: []}
    for key, rest in added:
        pool.add(key, (rest,))
        slow_add(slow[key], (rest,), size)
        assert [pool.get(0), pool.get(1), pool.get(2)] == [slow[0], slow[1], []]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ngram", [2, 3, 5])
def test_a_cycle_commits_up_to_n_tokens_and_one_fewer_under_the_parity_cap(
    counter: Target, ngram: int, temperature: float
) -> None:
    request = Request(tuple(range(6)) * 2, 60, sampling=Sampling(temperature))
    for capped in (False, True):
        drafter = methods.load("lookahead", {"window": 6, "ngram": ngram, "parity_cap": capped}, counter)
        tokens, steps = run(counter, drafter, request)
        assert tokens == [index % 6 for index in range(60)]
        assert max(len(step.tokens) for step in steps) == ngram - capped


def test_drafts_do_not_reach_past_the_length_limit(counter: Target) -> None:
    for cycle in record(counter, Request(tuple(range(6)) * 2, 40), window=6, ngram=5):
        assert cycle.draft.tree.depths.max() <= cycle.remaining - 1


@pytest.mark.parametrize("knobs", [{"window": 0}, {"ngram": 1}, {"guesses": 0}])
def test_bad_settings_are_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"^window, ngram and guesses must be at least 1, 2 and 1$"):
        methods.configure("lookahead", knobs)
