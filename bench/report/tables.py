"""Records -> one tidy DataFrame: a row for each model, decoding, method and task, with every estimator in it.

No torch: a table is redrawn on a laptop. How it is laid out on a page is ``layout.py``'s matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.plan.cells import Cell
from bench.plan.schema import Decode
from bench.records.block import Turn, turns_of
from bench.report import published
from bench.report.admissible import AdmissibleCell, gather
from bench.report.estimators import ESTIMATORS, sums, without
from bench.report.intervals import Estimate, estimate, is_stable, mean, questions_for, stability

MEAN = "mean"
NO_WEIGHTS = "no weights"
NEW = "new"


@dataclass(frozen=True)
class Group:
    """What the rows of one method have in common, one a task. ``decode`` says in words how the text was chosen.

    ``temperature`` is what a printed number is looked up by: None where top-p or top-k was set too, for which the
    papers print none.
    """

    model: str
    dtype: str
    decode: str
    method: str
    temperature: float | None


@dataclass(frozen=True)
class Doubt:
    """What a reader of a number must know: its interval is wide or rests on few questions; not all tokens are equal."""

    unstable: bool
    unequal: bool


@dataclass(frozen=True)
class Report:
    """A table: its tidy rows, the holes with their reasons, and the lines that say on what machine and how.

    ``doubts`` has an entry for each row: None for a mean and where there is no number.
    """

    rows: pd.DataFrame
    doubts: list[Doubt | None]
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
    rows: list[tuple[Group, dict[str, Any]]] = []
    doubts: list[Doubt | None] = []
    estimates: dict[Group, dict[str, list[Estimate]]] = {}
    for one in evidence.measured:
        for label in one.cell.without_weights:
            group = _group(one.cell, label)
            rows.append((group, _row(group, one.cell.task.name, {}) | {"lossless": NO_WEIGHTS}))
            doubts.append(None)
        for label, verdict in one.verdicts.items():
            group = _group(one.cell, label)
            found, row = _measured_row(one, label)
            rows.append((group, row))
            stable = is_stable(found["speedup_geomean"])
            doubts.append(Doubt(unstable=not stable, unequal=verdict.identical < verdict.turns))
            for key, each in found.items():
                estimates.setdefault(group, {}).setdefault(key, []).append(each)
    tasks = len({cell.task.name for cell in cells})
    for group, lists in estimates.items():
        if tasks > 1 and len(lists["tau_micro"]) == tasks:
            short = sum(row.get("out_of_memory", 0) for of, row in rows if of == group)
            means = {key: mean(ones) for key, ones in lists.items()}
            rows.append((group, _row(group, MEAN, means) | {"out_of_memory": short}))
            doubts.append(None)
    settings = {name: knobs for cell in cells for name, knobs in cell.methods.items()}
    frame = _beside_published(pd.DataFrame([row for _, row in rows]), [group for group, _ in rows], table)
    printed = published.elsewhere(table, {cell.model.name for cell in cells})
    return Report(frame, doubts, evidence.holes, evidence.machine, settings, _protocol(cells), printed)


def decoding(decode: Decode) -> str:
    """How the text was chosen, from the settings themselves: a config's name does not follow its overrides."""
    parts = [f"T={decode.temperature:g}"]
    parts += [f"top_p={decode.top_p:g}"] * (decode.top_p < 1) + [f"top_k={decode.top_k}"] * (decode.top_k > 0)
    return ", ".join(parts)


def _group(cell: Cell, label: str) -> Group:
    filtered = cell.decode.top_p < 1 or cell.decode.top_k > 0
    temperature = None if filtered else cell.decode.temperature
    return Group(cell.model.name, cell.model.arithmetic, decoding(cell.decode), label, temperature)


def _measured_row(one: AdmissibleCell, label: str) -> tuple[dict[str, Estimate], dict[str, Any]]:
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
        "drafted_per_cycle": _drafted(turns_of(one.blocks, ident)),
        "joules_per_token": _joules_per_token(turns_of(one.blocks, ident)),
        "measured_again": sum(block.attempt > 1 for block in one.blocks),
        "lossless": str(one.verdicts[label]),
        "stability": stability(found["speedup_geomean"], data.questions),
        "cell": one.cell.id,
        "method_id": ident,
    }
    return found, row


def _drafted(turns: Sequence[Turn]) -> float | None:
    """Draft nodes verified in a cycle, on average: what two trees must have in common to be compared."""
    nodes = [count for turn in turns for count in turn.drafted[1:]]
    return sum(nodes) / len(nodes) if nodes else None


def _joules_per_token(turns: Sequence[Turn]) -> float | None:
    """All energy of the GPUs over all tokens, prefill included; None unless every turn has its energy."""
    energy = [turn.joules for turn in turns]
    known = [one for one in energy if one is not None]
    return sum(known) / sum(turn.tokens for turn in turns) if known and len(known) == len(energy) else None


def _row(group: Group, task: str, found: dict[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(group, name) for name in ("model", "dtype", "decode", "method")}
    row["task"] = task
    for key, one in found.items():
        row |= {key: one.value, f"{key}_low": one.low, f"{key}_high": one.high}
    return row


def _beside_published(rows: pd.DataFrame, groups: Sequence[Group], table: str) -> pd.DataFrame:
    """Add what was printed, and whether it lies in our interval; a cell that a printed table lacks is new."""
    numbers = published.numbers(table)
    known = {model for model, *_ in numbers}
    for name in published.METRICS.values():
        found: list[tuple[Any, ...]] = []
        for group, row in zip(groups, rows.to_dict("records"), strict=True):
            number = None
            if group.temperature is not None:
                number = numbers.get((group.model, group.temperature, group.method, row["task"], name))
            if number is None or pd.isna(row.get(name)):
                new = group.model in known and number is None
                found.append((number and number.value, None, None, NEW if new else None))
                continue
            agrees = number.within(row[f"{name}_low"], row[f"{name}_high"])
            found.append((number.value, agrees, number.confidence, number.source))
        columns = [f"{name}_published", f"{name}_agrees", f"{name}_confidence", f"{name}_source"]
        frame = pd.DataFrame(found, columns=columns, index=rows.index, dtype=object)
        rows[columns] = frame.astype({columns[0]: float, columns[1]: "boolean"})
    return rows


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
