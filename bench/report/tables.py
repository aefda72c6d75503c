"""Records -> one tidy DataFrame: a row for each model, decoding, method and task, with every estimator in it.

No torch: a table is redrawn on a laptop. How it is laid out on a page is ``layout.py``'s matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.measure import gpu_state
from bench.plan.cells import Cell
from bench.plan.schema import Decode
from bench.report import published
from bench.report.admissible import Measured, gather
from bench.report.stats import ESTIMATORS, Estimate, estimate, mean, questions_for, sums, verdict, without

MEAN = "mean"
NO_WEIGHTS = "no weights"
NEW = "new"

Group = tuple[str, str, str, str]
"""model, dtype, decode, method."""


@dataclass(frozen=True)
class Report:
    """A table: its tidy rows, the holes with their reasons, and the lines that say on what machine and how."""

    rows: pd.DataFrame
    holes: list[str]
    machine: str
    settings: dict[str, dict[str, Any]]
    protocol: str
    printed: pd.DataFrame


def collect(cells: Sequence[Cell], results: Path, table: str = "") -> Report:
    """Read the cells' records; ``table`` names the published numbers that stand beside ours.

    Raises:
        MixedHardwareError: if the records come from different kinds of machine.
    """
    evidence = gather(cells, results)
    rows: list[dict[str, Any]] = []
    estimates: dict[Group, dict[str, list[Estimate]]] = {}
    for one in evidence.measured:
        for label in one.cell.without_weights:
            rows.append(_row(_group(one.cell, label), one.cell.task.name, {}) | {"lossless": NO_WEIGHTS})
        for label in one.verdicts:
            found, row = _measured_row(one, label)
            rows.append(row)
            for key, each in found.items():
                estimates.setdefault(_group(one.cell, label), {}).setdefault(key, []).append(each)
    tasks = len({cell.task.name for cell in cells})
    for group, lists in estimates.items():
        if tasks > 1 and len(lists["tau_micro"]) == tasks:
            short = sum(row.get("out_of_memory", 0) for row in rows if _of(row) == group)
            means = {key: mean(ones) for key, ones in lists.items()}
            rows.append(_row(group, MEAN, means) | {"out_of_memory": short})
    settings = {name: knobs for cell in cells for name, knobs in cell.methods.items()}
    frame = _beside_published(pd.DataFrame(rows), table)
    printed = published.elsewhere(table, {cell.model.name for cell in cells})
    return Report(frame, evidence.holes, evidence.machine, settings, _protocol(cells), printed)


def decoding(decode: Decode) -> str:
    """How the text was chosen, from the settings themselves: a config's name does not follow its overrides."""
    parts = [f"T={decode.temperature:g}"]
    parts += [f"top_p={decode.top_p:g}"] * (decode.top_p < 1) + [f"top_k={decode.top_k}"] * (decode.top_k > 0)
    return ", ".join(parts)


def _group(cell: Cell, label: str) -> Group:
    return (cell.model.name, cell.model.arithmetic, decoding(cell.decode), label)


def _of(row: dict[str, Any]) -> Group:
    return (row["model"], row["dtype"], row["decode"], row["method"])


def _measured_row(one: Measured, label: str) -> tuple[dict[str, Estimate], dict[str, Any]]:
    ident = one.method_ids[label]
    data = sums(one.blocks, ident)
    found = {key: estimate(key, data) for key in ESTIMATORS}
    row = _row(_group(one.cell, label), one.cell.task.name, found) | {
        "questions": data.questions,
        **{f"{key}_without": count for key, count in without(data).items()},
        "questions_for_5_percent": questions_for(found["speedup_geomean"], data.questions),
        "out_of_memory": len(one.out_of_memory.get(label, ())),
        "turns": int(data.turns.sum()),
        "cycles": int(data.cycles.sum()),
        "drafted_per_cycle": _drafted(one.blocks, ident),
        "joules_per_token": _joules_per_token(one.blocks, ident),
        "measured_again": sum(block.get("attempt", 1) > 1 for block in one.blocks),
        "lossless": str(one.verdicts[label]),
        "stability": verdict(found["speedup_geomean"], data.questions),
        "cell": one.cell.id,
        "method_id": ident,
    }
    return found, row


def _drafted(blocks: Sequence[dict[str, Any]], ident: str) -> float | None:
    """Draft nodes verified in a cycle, on average: what two trees must have in common to be compared."""
    nodes = [count for turn in _turns(blocks, ident) for count in turn.get("drafted", ())[1:]]
    return sum(nodes) / len(nodes) if nodes else None


def _joules_per_token(blocks: Sequence[dict[str, Any]], ident: str) -> float | None:
    """All energy of the GPUs over all tokens, prefill included; None unless every turn has its energy."""
    turns = _turns(blocks, ident)
    energy = [gpu_state.joules(turn) for turn in turns]
    known = [one for one in energy if one is not None]
    return sum(known) / sum(len(turn["output_ids"]) for turn in turns) if known and len(known) == len(energy) else None


def _turns(blocks: Sequence[dict[str, Any]], ident: str) -> list[dict[str, Any]]:
    return [turn for block in blocks for run in block["runs"] if run["method_id"] == ident for turn in run["turns"]]


def _row(group: Group, task: str, found: dict[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(("model", "dtype", "decode", "method"), group, strict=True)) | {"task": task}
    for key, one in found.items():
        row |= {key: one.value, f"{key}_low": one.low, f"{key}_high": one.high}
    return row


def _beside_published(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """Add what was printed, and whether it lies in our interval; a cell that a printed table lacks is new."""
    numbers = published.numbers(table)
    known = {model for model, *_ in numbers}
    for name in published.METRICS.values():
        found: list[tuple[Any, ...]] = []
        for row in rows.to_dict("records"):
            number = numbers.get((row["model"], _temperature(row["decode"]), row["method"], row["task"], name))
            if number is None or pd.isna(row.get(name)):
                new = row["model"] in known and number is None
                found.append((number and number.value, None, None, NEW if new else None))
                continue
            agrees = number.within(row[f"{name}_low"], row[f"{name}_high"])
            found.append((number.value, agrees, number.confidence, number.source))
        columns = [f"{name}_published", f"{name}_agrees", f"{name}_confidence", f"{name}_source"]
        frame = pd.DataFrame(found, columns=columns, index=rows.index, dtype=object)
        rows[columns] = frame.astype({columns[0]: float, columns[1]: "boolean"})
    return rows


def _temperature(decode: str) -> float:
    """The temperature a row was measured at; -1, which nothing was printed for, where more than it was set."""
    return float(decode.removeprefix("T=")) if "," not in decode else -1.0


def _protocol(cells: Sequence[Cell]) -> str:
    """Which questions, decoded how: a benchmark's name at the head of a column does not say either."""
    tasks = {f"{cell.task.name} {len(cell.questions)} {cell.task.source}" for cell in cells}
    decodes = {f"{decoding(cell.decode)}: {cell.decode.max_new_tokens} new tokens, seed {cell.decode.seed}"
               for cell in cells}  # fmt: skip
    measures = {f"measure={cell.measure.name}, history={cell.measure.history}" for cell in cells}
    measures |= {f"runtime={cell.model.runtime}, vanilla's too" for cell in cells if cell.model.runtime != "hf"}
    if any(cell.measure.nodes for cell in cells):
        measures.add("nodes recorded, which costs time: no speed of these cells stands beside others")
    return f"Questions: {', '.join(sorted(tasks))}. {'; '.join(sorted(decodes))}. {'; '.join(sorted(measures))}."
