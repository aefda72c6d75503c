"""The published numbers that ours are compared with, checked against themselves."""

from __future__ import annotations

import pandas as pd

from bench.report import published

TABLE1 = published.FOLDER / "table1.csv"


def test_every_printed_name_of_the_paper_s_tables_is_one_of_ours() -> None:
    for table in ("table1", "table2", "table3", "figure1", "figure2"):
        rows = published.transcription(table)
        assert len(rows)
        for kind in ("model", "method", "task"):
            assert all(published.ours(kind, name) for name in set(rows[kind])), (table, kind)


def test_tables_that_print_the_same_cell_agree() -> None:
    """Table 2's and 3's rows, and the bars of figures 1 and 2, repeat cells of Table 1 where they overlap."""
    first = published.numbers("table1")
    shared = 0
    for table in ("table2", "table3", "figure1", "figure2"):
        for key, number in published.numbers(table).items():
            if key in first:
                shared += 1
                assert first[key].value == number.value, (table, key)
    assert shared == 28


def test_both_readings_of_w_o_value_stand_beside_the_one_printed_row() -> None:
    numbers = published.numbers("table3")
    for label in ("eagle2 w/o value", "eagle2 w/o value at all"):
        assert numbers["vicuna7b", 0.0, label, "gsm8k", "tau_paper"].confidence == "low"


def test_a_printed_value_is_known_to_two_digits_only() -> None:
    number = published.Number(3.62, "", "")
    assert number.within(3.624, 4.0)
    assert not number.within(3.626, 4.0)
    assert number.within(None, None)


def test_item_12_63_of_64_printed_means_are_the_mean_of_their_tasks() -> None:
    """So "Mean" in the paper's Table 1 is unweighted over tasks, and the transcription is very probably right."""
    rows = pd.read_csv(TABLE1)
    group = ["temperature", "model", "method", "metric"]
    printed = rows[rows["task"] == "Mean"].set_index(group)["value"]
    tasks = rows[rows["task"] != "Mean"].groupby(group)["value"]
    assert (tasks.size() == 6).all()
    # Half a unit of the last printed digit, and a hair for the sum of six rounded cells.
    off = (printed - tasks.mean()).abs() > 0.01 + 1e-9
    assert len(printed) == 64
    assert list(off[off].index) == [(1, "V 13B", "SpS", "speedup")]
