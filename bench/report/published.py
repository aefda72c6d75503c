"""The papers' numbers under our names: ``bench/data/published/<table>.csv``, transcribed, with source and confidence.

``names.csv`` beside them says which of our models, methods and tasks a printed name means. A printed row may mean two
of ours: the paper's "w/o value" can be read in two ways, and both are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parents[1] / "data" / "published"

METRICS = {"speedup": "speedup_paper", "tau": "tau_paper"}
"""The estimators that repeat how the paper's columns were computed (docs/metrics.md)."""

Key = tuple[str, float, str, str, str]
"""model, temperature, method, task, estimator; all in our names."""


@dataclass(frozen=True)
class Number:
    """A printed value: rounded to two digits, where it was printed, and how sure the transcription is."""

    value: float
    source: str
    confidence: str

    def within(self, low: float | None, high: float | None) -> bool:
        """Whether an interval holds some number that prints as this one."""
        if low is None or high is None:
            return True
        return low - 0.005 <= self.value <= high + 0.005


@lru_cache(maxsize=32)
def transcription(table: str) -> pd.DataFrame:
    """A transcribed table as it stands, in the paper's own names; empty if there is none."""
    path = FOLDER / f"{table}.csv"
    if not path.exists():
        return pd.DataFrame(
            columns=["temperature", "model", "method", "task", "metric", "value", "source", "confidence"]
        )
    return pd.read_csv(path)


def numbers(table: str) -> dict[Key, Number]:
    """A transcribed table under our names. A printed N/A is no number."""
    found: dict[Key, Number] = {}
    for row in transcription(table).to_dict("records"):
        value = pd.to_numeric(row["value"], errors="coerce")
        if row["metric"] not in METRICS or pd.isna(value):
            continue
        number = Number(float(value), row["source"], row["confidence"])
        for model in ours("model", row["model"]):
            for method in ours("method", row["method"]):
                for task in ours("task", row["task"]):
                    found[model, float(row["temperature"]), method, task, METRICS[row["metric"]]] = number
    return found


def elsewhere(table: str, measured: set[str]) -> pd.DataFrame:
    """The printed rows of models other than these, as the paper lays them out: speedup / tau of each task."""
    rows = transcription(table)
    here = {printed("model", name) for name in measured}
    rows = rows[~rows["model"].isin(here) & rows["metric"].isin(METRICS)]
    if rows.empty:
        return pd.DataFrame()
    keys = ["temperature", "model", "method"]
    wide = rows.pivot_table(index=keys, columns=["task", "metric"], values="value", sort=False)
    cells = {task: wide[task]["speedup"].map("{:.2f}x".format) + " / " + wide[task]["tau"].map("{:.2f}".format)
             for task in dict.fromkeys(rows["task"])}  # fmt: skip
    return pd.DataFrame(cells).reset_index()


def ours(kind: str, printed: str) -> list[str]:
    """Our names for a printed one."""
    return [name for name, known in _names(kind) if known == printed]


def printed(kind: str, name: str) -> str:
    """The paper's name for one of ours, or ours where the paper has none."""
    return next((known for each, known in _names(kind) if each == name), name)


@lru_cache(maxsize=8)
def _names(kind: str) -> tuple[tuple[str, str], ...]:
    path = FOLDER / "names.csv"
    if not path.exists():
        return ()
    table = pd.read_csv(path)
    rows = table[table["kind"] == kind]
    return tuple(zip(rows["name"], rows["published"], strict=True))
