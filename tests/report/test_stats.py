"""Estimators: the paper's tau on its authors' released run, each against plain Python, and intervals over questions."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.records.block import Block
from bench.report.stats import (
    ESTIMATORS,
    RESAMPLES,
    Estimate,
    Sums,
    compare,
    estimate,
    mean,
    questions_for,
    stability,
    sums,
    without,
)
from tests.support.commands import block, turn

# The authors' EAGLE run of Llama-2-chat 70B on MT-bench, T=0 (SafeAILab/EAGLE at 2ec9512): 80 questions of two turns,
# new_tokens,new_tokens/idx,idx, where idx is the zero-based index of a turn's last cycle.
RELEASED = """
    1026,471/334,126 179,399/40,92 518,42/137,16 611,206/176,63 268,490/84,144 451,721/148,231 631,47/196,15
    171,12/61,3 452,108/122,28 112,163/28,38 653,435/226,128 188,299/70,89 694,568/191,169 150,377/43,126
    242,105/85,30 317,457/82,125 404,538/104,153 227,481/79,128 227,313/83,80 340,647/108,184 127,145/34,31
    186,135/65,37 317,211/89,60 175,84/49,22 73,80/21,20 90,96/21,20 74,242/16,55 63,60/18,17 149,167/38,38
    296,515/88,157 166,192/42,49 114,98/23,21 135,86/38,23 316,254/67,51 372,330/91,76 164,212/40,52 194,132/55,33
    191,150/56,37 126,257/27,57 152,406/31,91 626,641/138,159 445,474/105,99 390,293/94,67 216,100/57,26
    506,365/116,94 194,405/57,103 576,569/131,130 307,318/86,76 233,551/63,123 344,356/75,84 117,137/30,27
    197,232/45,46 134,228/28,49 67,246/14,54 81,83/18,29 80,96/19,25 103,25/24,8 327,44/87,12 540,286/135,63
    125,144/26,31 414,239/102,65 297,556/83,149 523,968/142,308 276,200/76,50 420,274/121,74 379,212/92,62
    531,716/149,194 836,682/217,163 774,421/194,116 278,550/80,149 543,320/148,95 488,539/148,176 1029,717/325,235
    1025,494/272,136 562,772/163,201 452,1028/136,299 278,566/74,148 386,892/105,265 704,722/216,212
    581,751/188,215
"""
VANILLA = [turn([1, 1], 1.0)]


def released() -> Sums:
    blocks = []
    for number, entry in enumerate(RELEASED.split()):
        tokens, last = ([int(value) for value in part.split(",")] for part in entry.split("/"))
        # A prefill step, then idx + 1 cycles; which cycle emitted how many does not matter here.
        turns = [turn([1, n - idx, *[1] * idx]) for n, idx in zip(tokens, last, strict=True)]
        blocks.append(block(str(81 + number), {"vanilla": VANILLA * 2, "eagle": turns}))
    return sums(blocks, "eagle")


def test_item_11_the_paper_s_estimator_gives_the_paper_s_number_on_its_released_run() -> None:
    data = released()
    assert (data.questions, data.turns.sum()) == (80, 160)
    assert round(float(ESTIMATORS["tau_paper"](data)), 3) == 3.806, "the paper prints 3.81"
    assert round(float(ESTIMATORS["tau_question"](data)), 3) == 3.740
    assert round(float(ESTIMATORS["tau_micro"](data)), 3) == 3.620
    # Not an estimator of ours, but it proves that the sums are the file's: tokens over idx, over everything.
    assert round(float(data.emitted.sum() / (data.cycles - data.turns).sum()), 3) == 3.658


def by_hand(blocks: list[Block], method: str) -> dict[str, float]:
    """Every estimator again, from its definition, in plain Python."""
    questions: dict[str, dict[str, float]] = {}
    for one in blocks:
        found = {run.method_id: run.turns for run in one.runs}
        if method not in found:
            continue
        q = questions.setdefault(one.question_id, dict.fromkeys(("n", "c", "turns", "t", "s", "vt", "vs"), 0.0))
        for each in found[method]:
            q["n"] += len(each.output_ids) - each.emitted[0]
            q["c"] += len(each.emitted[1:])
            q["turns"] += len(each.emitted) > 1  # the turns that had a cycle
            q["t"] += len(each.output_ids)
            q["s"] += each.end_ns[-1] * 1e-9
        for each in found["vanilla"]:
            q["vt"] += len(each.output_ids)
            q["vs"] += each.end_ns[-1] * 1e-9
    rows = list(questions.values())

    def total(key: str) -> float:
        return math.fsum(row[key] for row in rows)

    def average(values: list[float]) -> float:
        return statistics.fmean(values) if values else math.nan

    ratios = [(row["t"] / row["s"]) / (row["vt"] / row["vs"]) for row in rows]
    return {
        "tau_micro": total("n") / total("c") if total("c") else math.nan,
        "tau_question": average([row["n"] / row["c"] for row in rows if row["c"]]),
        "tau_paper": average([row["n"] / (row["c"] - row["turns"]) for row in rows if row["c"] > row["turns"]]),
        "speedup_paper": average([row["t"] / row["s"] for row in rows])
        / average([row["vt"] / row["vs"] for row in rows]),
        "speedup_total": (total("t") / total("s")) / (total("vt") / total("vs")),
        "speedup_geomean": statistics.geometric_mean(ratios),
        "tokens_per_s": total("t") / total("s"),
    }


STEPS = st.lists(st.integers(1, 8), max_size=12).map(lambda cycles: [1, *cycles])
TURNS = st.builds(turn, STEPS, st.floats(0.01, 100.0))


@st.composite
def many_blocks(draw: st.DrawFn) -> list[Block]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        for repeat in range(draw(st.integers(1, 2))):
            count = draw(st.integers(1, 2))
            runs = {name: [draw(TURNS) for _ in range(count)] for name in ("vanilla", "m")}
            made.append(block(str(number), runs, repeat))
    alone = block("0", {"vanilla": [turn([1, 1], 50.0)], "another": [turn([1, 9], 0.1)]})
    return [alone, *made] if draw(st.booleans()) else made


@settings(max_examples=60)
@given(many_blocks())
def test_each_estimator_equals_its_definition(blocks: list[Block]) -> None:
    data = sums(blocks, "m")
    expected = by_hand(blocks, "m")
    assert list(expected) == list(ESTIMATORS)
    for name, function in ESTIMATORS.items():
        assert float(function(data)) == pytest.approx(expected[name], rel=1e-12, nan_ok=True), name


def test_estimators_on_one_small_turn_worked_by_hand() -> None:
    # Prefill, then cycles of 3, 1 and 4 tokens: 9 tokens in 2 s, where vanilla took 6 s.
    data = sums([block("a", {"vanilla": [turn([1] * 9, 6.0)], "m": [turn([1, 3, 1, 4], 2.0)]})], "m")
    found = {name: float(function(data)) for name, function in ESTIMATORS.items()}
    assert found == pytest.approx(
        {
            "tau_micro": 8 / 3, "tau_question": 8 / 3, "tau_paper": 8 / 2, "speedup_paper": 3.0, "speedup_total": 3.0,
            "speedup_geomean": 3.0, "tokens_per_s": 4.5,
        }
    )  # fmt: skip


def test_vanilla_beside_itself_has_tau_and_speedup_of_exactly_one() -> None:
    data = sums([block(name, {"vanilla": [turn([1] * 7, 3.0)] * 2}) for name in "abc"], "vanilla")
    for name in ("tau_micro", "tau_question", "speedup_paper", "speedup_total", "speedup_geomean"):
        assert float(ESTIMATORS[name](data)) == 1.0


def test_a_turn_without_a_cycle_takes_nothing_from_the_paper_s_denominator() -> None:
    """Its script's index of the last cycle starts at zero: a turn that the prefill ended has none, not minus one."""
    made = [
        block("a", {"vanilla": VANILLA * 2, "m": [turn([1]), turn([1, 4, 2])]}),
        block("b", {"vanilla": VANILLA, "m": [turn([1, 5])]}),
    ]
    data = sums(made, "m")
    assert data.indexed.tolist() == [1.0, 0.0]
    assert float(ESTIMATORS["tau_paper"](data)) == 6.0
    assert without(data) == {"tau_question": 0, "tau_paper": 1}
    only_prefill = sums([block("a", {"vanilla": VANILLA, "m": [turn([1])]})], "m")
    assert without(only_prefill) == {"tau_question": 1, "tau_paper": 1}
    assert math.isnan(float(ESTIMATORS["tau_paper"](only_prefill)))


def test_tokens_in_no_time_have_no_rate() -> None:
    """A clock may be that coarse. An infinity would pass for a number; every reader knows NaN for none."""
    data = sums([block("a", {"vanilla": VANILLA, "m": [turn([1, 4], 0.0)]})], "m")
    assert math.isnan(float(ESTIMATORS["tokens_per_s"](data)))


def test_a_paired_test_counts_every_flip_of_signs() -> None:
    first, second = np.array([2.0, 3.0, 1.5, 2.5]), np.array([1.0, 2.0, 1.6, 2.0])
    logs = np.log(first / second)
    flips = [
        sum(sign * log for sign, log in zip(signs, logs, strict=True)) for signs in itertools.product((1, -1), repeat=4)
    ]
    expected = sum(abs(flip) >= abs(sum(logs)) - 1e-12 for flip in flips) / 16
    found = compare(first, second)
    assert found.p == expected
    assert found.ratio == pytest.approx(statistics.geometric_mean(first / second), rel=1e-12)
    assert compare(second, first).p == found.p
    assert found.words("a", "b") == "4 questions cannot show a difference (p is 0.12 at least)"


@pytest.mark.parametrize("questions", [12, 13])
def test_all_flips_are_counted_up_to_12_questions_and_random_ones_beyond(questions: int) -> None:
    logs = np.random.default_rng(1).normal(0.3, 1.0, questions)
    flips = np.array(list(itertools.product((1, -1), repeat=questions))) @ logs
    exact = float((np.abs(flips) >= abs(logs.sum()) - 1e-9).mean())
    found = compare(np.exp(logs), np.ones(questions)).p
    assert found == pytest.approx(exact, abs=0.02)
    assert (found == exact) == (questions == 12)


@pytest.mark.slow
@pytest.mark.parametrize("questions", [10, 40])
def test_a_paired_test_rejects_a_true_null_as_often_as_it_says(questions: int) -> None:
    rng = np.random.default_rng(7)
    rejected = sum(
        compare(np.exp(rng.normal(0, 1, questions)), np.exp(rng.normal(0, 1, questions)), seed).p <= 0.05
        for seed in range(400)
    )
    assert 8 <= rejected <= 34, "5 % of 400, within three sigma"


def test_a_clear_difference_is_shown_and_agrees_with_wilcoxon() -> None:
    rng = np.random.default_rng(8)
    first = np.exp(rng.normal(0.5, 0.4, 30))
    second = np.exp(rng.normal(0.0, 0.4, 30))
    found = compare(first, second)
    assert found.words("eagle2", "eagle") == "eagle2 is higher"
    assert compare(second, first).words("eagle", "eagle2") == "eagle2 is higher"
    assert (found.p < 0.05) == (scipy.stats.wilcoxon(np.log(first / second)).pvalue < 0.05)
    assert found.low is not None
    assert 1.0 < found.low < found.ratio
    same = compare(first, first)
    assert (same.p, same.ratio, same.words("a", "b")) == (1.0, 1.0, "no difference shown")


def two_questions(repeats: int = 1) -> Sums:
    """Turns that differ much within each question: tau 1 and 9, and 2 and 4."""
    made = [
        block(name, {"vanilla": [turn([1] * 5, 4.0)] * 2, "m": [turn([1] + [low] * 4), turn([1] + [high] * 4)]}, repeat)
        for name, low, high in (("a", 1, 9), ("b", 2, 4))
        for repeat in range(repeats)
    ]
    return sums(made, "m")


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_bootstrap_resamples_whole_questions_never_turns_or_repeats(repeats: int) -> None:
    # Two questions can be drawn in three ways only. Resampled turns would give many values, tau 1 and 9 among them.
    one = estimate("tau_question", two_questions(repeats))
    values, counts = np.unique(one.replicates.round(9), return_counts=True)
    assert values.tolist() == [3.0, 4.0, 5.0]
    assert np.allclose(counts / RESAMPLES, [0.25, 0.5, 0.25], atol=0.04)
    assert (one.value, one.low, one.high) == (4.0, 3.0, 5.0)


def test_an_interval_is_the_same_every_time_and_near_the_normal_one() -> None:
    data = released()
    first, second = estimate("tau_paper", data), estimate("tau_paper", data)
    assert np.array_equal(first.replicates, second.replicates)
    # The normal approximation, from the standard error of the 80 questions: 3.698 to 3.915.
    each = data.emitted / (data.cycles - data.turns)
    margin = 1.96 * each.std(ddof=1) / math.sqrt(80)
    assert (first.low, first.high) == pytest.approx((each.mean() - margin, each.mean() + margin), abs=0.01)
    other = estimate("tau_paper", data, seed=1)
    assert other.value == first.value
    assert other.low != first.low
    assert abs(other.low - first.low) < 0.03


def test_one_question_has_no_interval() -> None:
    one = estimate("tau_micro", sums([block("a", {"vanilla": VANILLA, "m": [turn([1, 4])]})], "m"))
    assert (one.value, one.low, one.high) == (4.0, None, None)


def test_a_question_without_a_cycle_has_no_tau_and_does_not_spoil_the_others() -> None:
    ended = block("ended at the prefill", {"vanilla": [turn([1])], "m": [turn([1], 0.5)]})
    other = block("other", {"vanilla": VANILLA, "m": [turn([1, 4, 2])]})
    for name in ("tau_micro", "tau_question"):
        one = estimate(name, sums([ended, other], "m"))
        assert (one.value, one.low, one.high) == (3.0, 3.0, 3.0)
    nothing = estimate("tau_paper", sums([ended, replace(ended, question_id="too")], "m"))
    assert math.isnan(nothing.value)
    assert estimate("speedup_geomean", sums([ended, other], "m")).value == pytest.approx(math.sqrt(2.0 * 3.5))


@pytest.mark.slow
def test_the_interval_contains_the_truth_most_of_the_time() -> None:
    """40 questions of two turns that share their question's luck; here a bootstrap over turns covers it 81 times."""
    rng = np.random.default_rng(5)
    contained = 0
    for _ in range(100):
        levels = rng.lognormal(0.0, 0.5, size=40)
        made = [
            block(str(n), {"vanilla": [turn([1] * 4, 1.0)] * 2, "m": [turn([1] * 4, 1 / (level * rng.lognormal(0, 0.1)))
                                                                     for _ in range(2)]})
            for n, level in enumerate(levels)
        ]  # fmt: skip
        one = estimate("speedup_geomean", sums(made, "m"))
        assert one.low is not None
        assert one.high is not None
        contained += one.low <= 1.0 <= one.high
    assert contained >= 85


def test_verdicts_say_in_words_whether_a_number_is_stable() -> None:
    none = np.zeros(1)
    assert stability(Estimate(2.0, 1.9, 2.1, none), 80) == "stable: ±5.0%"
    assert stability(Estimate(2.0, 1.81, 2.19, none), 80) == "stable: ±9.5%; ±5% needs about 289"
    text = stability(Estimate(2.0, 1.2, 2.8, none), 6)
    assert text == "6 questions: too few for ±10% (±40.0%; ±5% needs about 384)"
    assert stability(Estimate(2.0, 1.2, 2.8, none), 60, bound=0.4) == "stable: ±40.0%; ±5% needs about 3840"
    assert questions_for(Estimate(2.0, 1.8, 2.2, none), 80) == 320, "half the width takes four times the questions"
    assert questions_for(Estimate(2.0, None, None, none), 1) is None
    assert stability(Estimate(2.0, 1.9, 2.1, none), 3) == "±5.0%, but 3 questions are too few to trust an interval"
    assert stability(Estimate(2.0, None, None, none), 1) == "1 question: no interval"


def test_the_mean_over_tasks_is_unweighted_and_its_tasks_vary_independently() -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(0.0, 1.0, RESAMPLES)
    low, high = (Estimate(value, value - 1.96, value + 1.96, value + shared) for value in (2.0, 4.0))
    one = mean([low, high])
    assert one.value == 3.0
    assert one.low is not None
    assert one.high is not None
    # Independent tasks: the interval shrinks by sqrt(2), although both bootstraps drew the same questions.
    assert (one.high - one.low) / 3.92 == pytest.approx(1 / math.sqrt(2), rel=0.06)
    assert mean([low, Estimate(4.0, None, None, shared)]).low is None
