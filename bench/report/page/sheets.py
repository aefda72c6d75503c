"""results/tables/*.csv -> what the page shows of them: a grid as in the paper, and every column, both to sort.

The tidy CSV is the one form of a table that other code may rely on. The JSON beside it gives title, caption and the
estimators that a grid shows; a table without one is shown in full only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import methods
from bench.records.store import DamagedRecordError

UNITS = {"speedup_paper": "×", "speedup_geomean": "×", "tau_paper": "", "tau_micro": ""}
"""The estimators that a grid may show, and what follows their numbers."""

_KEYS = ["model", "dtype", "decode", "method", "task"]


@dataclass(frozen=True)
class Entry:
    """What a table cell says, what it sorts by (None: last), and what stands under it: the interval."""

    text: str
    sort: float | str | None
    under: str = ""


@dataclass(frozen=True)
class Grid:
    """Methods down, tasks across."""

    heading: str
    tasks: list[str]
    estimators: list[str]
    rows: list[tuple[str, list[Entry]]]


@dataclass(frozen=True)
class Sheet:
    """One table of results/tables."""

    name: str
    title: str
    caption: list[str]
    grids: list[Grid]
    columns: list[str]
    rows: list[list[Entry]]


def table_sheets(results: Path) -> list[Sheet]:
    """Every table drawn so far, by name."""
    return [_sheet(path) for path in sorted((results / "tables").glob("*.csv")) if not path.is_symlink()]


def _sheet(path: Path) -> Sheet:
    try:
        frame = pd.read_csv(path, dtype={"cell": str, "method_id": str})  # 12 hex digits can look like a number
    except ValueError as error:  # pandas' own are of this kind
        raise DamagedRecordError(f"{path} is no table ({str(error).splitlines()[0]}); remove it") from None
    words = _words(path.with_suffix(".json"), path.stem)
    columns = [
        name
        for name in frame.columns
        if name.removesuffix("_low").removesuffix("_high") not in frame.columns or not name.endswith(("_low", "_high"))
    ]
    rows = [[_entry(row, name) for name in columns] for row in frame.to_dict("records")]
    return Sheet(path.stem, words.title, words.caption, _grids(frame, words.estimators), columns, rows)


@dataclass(frozen=True)
class _Words:
    """What is said of a table: its title, the paragraphs below it, and the estimators that these explain."""

    title: str
    caption: list[str]
    estimators: list[str]


def _words(path: Path, name: str) -> _Words:
    """Of the table of that name; its name alone if nothing is said of it."""
    if path.is_symlink() or not path.exists():
        return _Words(name, [], [])
    try:
        found = json.loads(path.read_bytes())
        explained = [str(each) for each, _meaning in found["estimators"]]
        return _Words(str(found["title"]), [str(line) for line in found["caption"]], explained)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedRecordError(f"{path} does not describe a table ({error!r}); remove it and draw it again") from None


def _grids(frame: pd.DataFrame, explained: list[str]) -> list[Grid]:
    """One grid a model and decoding. A table with more than one row a method and task has no such grid."""
    estimators = [name for name in explained if name in UNITS and name in frame.columns]
    if frame.empty or not estimators or not set(_KEYS) <= set(frame.columns) or frame.duplicated(_KEYS).any():
        return []
    grids = []
    for (model, dtype, decode), block in frame.groupby(_KEYS[:3], sort=False):
        found = {(row["method"], row["task"]): row for row in block.to_dict("records")}
        tasks = [str(task) for task in dict.fromkeys(block["task"])]
        order = {name: place for place, name in enumerate(methods.names())}
        names = sorted(dict.fromkeys(block["method"]), key=lambda name: order.get(name, len(order)))
        rows = [
            (str(name), [_entry(found.get((name, task), {}), key) for task in tasks for key in estimators])
            for name in names
        ]
        grids.append(Grid(f"{model}, {dtype}, {decode}", tasks, estimators, rows))
    return grids


def _entry(row: dict[Any, Any], name: str) -> Entry:
    value = row.get(name)
    if pd.isna(value):
        reason = row.get("lossless") if name in UNITS else None  # "no weights", say
        return Entry("–", None, reason if isinstance(reason, str) else "")
    if isinstance(value, float):
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        interval = "" if pd.isna(low) or pd.isna(high) else f"{low:.2f}–{high:.2f}"
        if name in UNITS and row.get("out_of_memory", 0) > 0:
            interval += f" without {row['out_of_memory']:.0f}: out of memory"
        text = f"{value:.0f}" if value.is_integer() and not interval else f"{value:.2f}"
        return Entry(text + UNITS.get(name, ""), value, interval)
    return Entry(str(value), value if isinstance(value, int) else str(value))
