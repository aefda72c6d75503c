"""The published numbers that ours are compared with, checked against themselves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TABLE1 = Path(__file__).parent.parent / "results" / "published" / "table1.csv"


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
