"""Intervals over questions and paired tests: against formulas worked by hand, and against the truth many times over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from bench.report.compare import paired_test
from bench.report.estimators import Sums, sums
from bench.report.intervals import Estimate, estimate, mean, questions_for, stability
from scripts.benchmarks.interval_coverage import LAWS, coverage
from tests.support.commands import block, turn

VANILLA = [turn([1] * 5, 4.0)]


def questions(*speeds: Sequence[float], repeats: int = 1) -> Sums:
    """Questions whose turns are so many times as fast as vanilla's; all their turns have four tokens in one cycle."""
    made = [
        block(str(n), {"vanilla": VANILLA * len(each), "m": [turn([1, 4], 4.0 / speed) for speed in each]}, repeat)
        for n, each in enumerate(speeds)
        for repeat in range(repeats)
    ]
    return sums(made, "m")


def test_the_interval_of_a_geometric_mean_is_students_of_the_logarithms() -> None:
    """There the jackknife is the textbook's: mean log ratio plus or minus t times s over root n."""
    logs = np.log([1.5, 2.0, 4.0, 3.0])
    one = estimate("speedup_geomean", questions([1.5], [2.0], [4.0], [3.0]))
    half = scipy.stats.t.ppf(0.975, 3) * logs.std(ddof=1) / 2
    assert (math.log(one.low or 0), math.log(one.high or 0)) == pytest.approx((logs.mean() - half, logs.mean() + half))
    assert one.freedom == 3


@pytest.mark.parametrize("repeats", [1, 3])
def test_questions_are_the_sample_never_turns_or_repeats(repeats: int) -> None:
    """Turns that differ much within questions that do not differ at all leave no spread."""
    one = estimate("speedup_total", questions([1.0, 9.0], [9.0, 1.0], [1.0, 9.0], repeats=repeats))
    assert one.low == one.high == one.value


def test_no_interval_below_three_questions() -> None:
    for few in (questions([2.0]), questions([2.0], [3.0])):
        one = estimate("tau_micro", few)
        assert (one.value, one.low, one.high) == (4.0, None, None)
    assert estimate("tau_micro", questions([2.0], [3.0], [2.5])).low == 4.0


def test_a_question_without_a_cycle_has_no_tau_and_does_not_spoil_the_others() -> None:
    ended = block("ended at the prefill", {"vanilla": [turn([1])], "m": [turn([1], 0.5)]})
    other = block("other", {"vanilla": VANILLA, "m": [turn([1, 4, 2])]})
    blocks = [ended, other, replace(other, question_id="third"), replace(other, question_id="fourth")]
    for name in ("tau_micro", "tau_question"):
        one = estimate(name, sums(blocks, "m"))
        assert (one.value, one.low, one.high) == (3.0, 3.0, 3.0)
    nothing = estimate("tau_paper", sums([ended, replace(ended, question_id="too")], "m"))
    assert math.isnan(nothing.value)
    lone = estimate("tau_paper", sums([ended, replace(ended, question_id="too"), other], "m"))
    assert (lone.value, lone.low) == (6.0, None), "without its only question there is no value to leave out"


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tasks"), [(3, 1), (5, 1), (12, 1), (3, 6)])
def test_an_interval_holds_the_truth_as_often_as_it_says(count: int, tasks: int) -> None:
    """Of 300 trials; a percentile bootstrap of three questions holds it in about half."""
    for name, share in coverage(count, 300, LAWS["mild"], tasks=tasks).items():
        assert 0.90 <= share <= 0.99, name


def test_the_mean_over_tasks_is_unweighted_and_its_tasks_are_independent() -> None:
    low, high = Estimate(2.0, 1.5, 2.5, error=0.3, freedom=4), Estimate(4.0, 3.0, 5.0, error=0.4, freedom=4)
    one = mean([low, high])
    assert (one.value, one.error) == pytest.approx((3.0, 0.25))
    # Satterthwaite: (a + b)^2 / (a^2 / 4 + b^2 / 4) with a = 0.09 and b = 0.16.
    assert one.freedom == pytest.approx(0.25**2 / (0.09**2 / 4 + 0.16**2 / 4))
    half = scipy.stats.t.ppf(0.975, one.freedom) * 0.25 / 3.0
    assert one.high == pytest.approx(3.0 * math.exp(half))
    assert mean([low, Estimate(4.0)]).low is None


def test_words_say_whether_a_number_is_stable() -> None:
    assert stability(Estimate(2.0, 1.9, 2.1), 80) == "stable: ±5.0%"
    assert stability(Estimate(2.0, 1.81, 2.19), 80) == "stable: ±9.5%; ±5% needs about 289"
    assert stability(Estimate(2.0, 1.2, 2.8), 12) == "12 questions: too few for ±10% (±40.0%; ±5% needs about 768)"
    assert questions_for(Estimate(2.0, 1.8, 2.2), 80) == 320, "half the width takes four times the questions"
    assert stability(Estimate(2.0, 1.2, 2.8), 6) == "6 questions: too few for ±10% (±40.0%)", "no advice below ten"
    assert questions_for(Estimate(2.0, 1.8, 2.2), 9) is None
    assert stability(Estimate(2.0), 2) == "2 questions: no interval"
    assert stability(Estimate(2.0), 1) == "1 question: no interval"


def test_a_paired_test_is_the_paired_t_test_and_its_interval_agrees_with_its_p() -> None:
    rng = np.random.default_rng(8)
    for shift in np.linspace(0.0, 0.5, 11):
        first, second = np.exp(rng.normal(shift, 0.4, 12)), np.exp(rng.normal(0.0, 0.4, 12))
        found = paired_test([(first, second)])
        assert found.p == pytest.approx(scipy.stats.ttest_rel(np.log(first), np.log(second)).pvalue)
        assert found.low is not None
        assert found.high is not None
        assert (found.p < 0.05) == (not found.low <= 1.0 <= found.high)
        back = paired_test([(second, first)])
        assert (back.p, back.low) == pytest.approx((found.p, 1 / found.high))


def test_a_clear_difference_is_named_and_none_is_not() -> None:
    rng = np.random.default_rng(8)
    first, second = np.exp(rng.normal(0.5, 0.4, 30)), np.exp(rng.normal(0.0, 0.4, 30))
    assert paired_test([(first, second)]).words("eagle2", "eagle") == "eagle2 is higher"
    assert paired_test([(second, first)]).words("eagle", "eagle2") == "eagle2 is higher"
    same = paired_test([(first, first)])
    assert (same.p, same.ratio, same.words("a", "b")) == (1.0, 1.0, "no difference shown")
    few = paired_test([(first[:2], second[:2])])
    assert (few.p, few.low, few.words("a", "b")) == (None, None, "2 questions cannot show a difference")


def test_tasks_are_strata_of_a_paired_test() -> None:
    """The mean is over tasks, and what tasks differ by is no noise."""
    rng = np.random.default_rng(3)
    ones = np.ones(6)
    strata = [(np.exp(shift + rng.normal(0.0, 0.05, 6)), ones) for shift in (0.1, 0.9)]
    found = paired_test(strata)
    means = [np.log(first).mean() for first, _ in strata]
    assert found.ratio == pytest.approx(math.exp(sum(means) / 2))
    assert found.questions == 12
    pooled = paired_test([(np.concatenate([first for first, _ in strata]), np.ones(12))])
    assert found.p is not None
    assert pooled.p is not None
    assert found.p < pooled.p
    assert paired_test([*strata, (ones[:2], ones[:2])]).p is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 40])
def test_a_paired_test_rejects_a_true_null_as_often_as_it_says(count: int) -> None:
    rng = np.random.default_rng(7)
    found = [
        paired_test([(np.exp(rng.normal(0, 1, count)), np.exp(rng.normal(0, 1, count)))]).p or 0.0 for _ in range(400)
    ]
    assert 8 <= sum(p <= 0.05 for p in found) <= 34, "5 % of 400, within three sigma"
