"""Estimators: the paper's tau on its authors' released run, each against plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.records.block import Block
from bench.report.estimators import ESTIMATORS, Sums, sums, without
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
