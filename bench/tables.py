"""Records -> one tidy DataFrame -> Markdown, CSV, LaTeX, parquet. No torch: a table is redrawn on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import methods
from bench import hardware
from bench.config import Table
from bench.lossless import judge
from bench.plan import VANILLA, Cell, missing
from bench.records import Store, write_atomically
from bench.stats import ESTIMATORS, Estimate, estimate, mean, sums, verdict
from methods.errors import ConfigError

MEAN = "mean"
NO_WEIGHTS = "no weights"

Group = tuple[str, str, str, str]
"""model, dtype, decode, method."""


class MixedHardwareError(ConfigError):
    """Cells of one table were measured on different machines."""


@dataclass(frozen=True)
class Report:
    """A table: its tidy rows, the holes with their reasons, and the line that says on what machine."""

    rows: pd.DataFrame
    holes: list[str]
    machine: str
    settings: dict[str, dict[str, Any]]
    protocol: str


def collect(cells: Sequence[Cell], results: Path) -> Report:
    """Read the cells' records. A cell that is missing, incomplete, failed or not lossless is a hole, never an average.

    Raises:
        MixedHardwareError: if the records come from different kinds of machine.
    """
    rows: list[dict[str, Any]] = []
    holes: list[str] = []
    machines: set[str] = set()
    estimates: dict[Group, dict[str, list[Estimate]]] = {}
    for cell in cells:
        store = Store(cell.folder(results))
        lacking = missing(cell, store)
        if lacking:
            failed = store.failed()
            reason = failed["error"] if failed else f"{len(lacking)} of {len(cell.questions)} questions to run"
            holes.append(f"{cell.name}: {reason}")
            continue
        blocks = store.blocks()
        sessions = store.sessions()  # one that wrote no block measured nothing, wherever it ran
        machines |= {hardware.kind(sessions[name]["hardware"]) for name in {block["session"] for block in blocks}}
        for name in cell.without_weights:
            group = (cell.model.name, cell.model.dtype, cell.decode.name, name)
            rows.append(_row(group, cell.task.name, {}) | {"lossless": NO_WEIGHTS})
        for name, ident in {VANILLA: VANILLA, **cell.method_ids}.items():
            lossless = judge(blocks, ident, cell.model.dtype)
            if not lossless.ok:
                holes.append(f"{cell.name} {name}: not lossless ({lossless}, largest gap {lossless.largest_gap:.3g})")
                continue
            data = sums(blocks, ident)
            found = {key: estimate(key, data) for key in ESTIMATORS}
            group = (cell.model.name, cell.model.dtype, cell.decode.name, name)
            for key, one in found.items():
                estimates.setdefault(group, {}).setdefault(key, []).append(one)
            rows.append(
                _row(group, cell.task.name, found)
                | {
                    "questions": data.questions,
                    "turns": int(data.turns.sum()),
                    "cycles": int(data.cycles.sum()),
                    "lossless": str(lossless),
                    "stability": verdict(found["speedup_geomean"], data.questions),
                    "cell": cell.id,
                    "method_id": ident,
                }
            )
    if len(machines) > 1:
        kinds = "; ".join(sorted(machines))
        raise MixedHardwareError(f"records of different machines cannot share a table ({kinds}); give results=FOLDER")
    tasks = len({cell.task.name for cell in cells})
    for group, lists in estimates.items():
        if tasks > 1 and len(lists["tau_micro"]) == tasks:
            rows.append(_row(group, MEAN, {key: mean(ones) for key, ones in lists.items()}))
    settings = {name: knobs for cell in cells for name, knobs in cell.methods.items()}
    return Report(pd.DataFrame(rows), holes, next(iter(machines), "no records"), settings, _protocol(cells))


def markdown(report: Report, title: str) -> str:
    """The page a reader sees: per model and decoding, methods down and tasks across, then what stands behind it."""
    parts = [f"# {title}\n"]
    if not report.rows.empty:
        for (model, dtype, decode), block in report.rows.groupby(["model", "dtype", "decode"], sort=False):
            parts.append(f"\n## {model}, {dtype}, {decode}\n\n{_grid(block).to_markdown()}\n")
            evidence = block[(block["task"] != MEAN) & (block["lossless"] != NO_WEIGHTS)]
            columns = ["method", "task", "questions", "turns", "tau_micro", "tau_question", "speedup_paper"]
            columns += ["speedup_total", "tokens_per_s", "lossless", "stability"]
            parts.append(f"\n{evidence[columns].to_markdown(index=False, floatfmt='.2f')}\n")
    parts.append(f"\n{caption(report)}\n")
    return "".join(parts)


def caption(report: Report) -> str:
    """What every number is, where it was measured, with which settings."""
    text = (
        "Each cell: speedup_geomean [95 % interval] / tau_paper. speedup_geomean is the geometric mean over questions "
        "of tokens/s over vanilla's in the same block, prefill included; tau_paper is the paper's estimator; intervals "
        "come from a percentile bootstrap over questions; mean is the unweighted mean over tasks. A turn is identical "
        "if it has vanilla's tokens, a near-tie if it differs only where the target's own choice is within rounding."
        "\n\n"
        f"Machine: {report.machine}. {report.protocol}"
    )
    for name, knobs in report.settings.items():
        shown = ", ".join(f"{key}={value}" for key, value in knobs.items())
        text += f"\n{name}: {shown or 'no settings'}."
    if report.holes:
        text += "\n\nHoles:\n" + "\n".join(f"- {hole}" for hole in report.holes)
    return text


def _protocol(cells: Sequence[Cell]) -> str:
    """Which questions, decoded how: a benchmark's name at the head of a column does not say either."""
    tasks = {f"{cell.task.name} {len(cell.questions)} {cell.task.source}" for cell in cells}
    decodes = {
        f"{cell.decode.name}: T={cell.decode.temperature:g}, top_p={cell.decode.top_p:g}, top_k={cell.decode.top_k}, "
        f"{cell.decode.max_new_tokens} new tokens, seed {cell.decode.seed}"
        for cell in cells
    }
    measures = {f"measure={cell.measure.name}, history={cell.measure.history}" for cell in cells}
    return f"Questions: {', '.join(sorted(tasks))}. {'; '.join(sorted(decodes))}. {'; '.join(sorted(measures))}."


def write(report: Report, table: Table, results: Path) -> list[Path]:
    """Write results/tables/<name>.{md,csv,tex,parquet} and return the paths."""
    folder = results / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    tex = "".join(
        f"% {model}, {dtype}, {decode}\n" + _grid(block).style.to_latex(hrules=True, column_format=None)
        for (model, dtype, decode), block in report.rows.groupby(["model", "dtype", "decode"], sort=False)
    )
    contents: dict[str, str | bytes] = {
        "md": markdown(report, table.title),
        "csv": report.rows.to_csv(index=False),
        "tex": tex.replace("_", r"\_"),
        "parquet": report.rows.to_parquet(index=False),
    }
    paths = []
    for suffix, content in contents.items():
        paths.append(folder / f"{table.name}.{suffix}")
        write_atomically(paths[-1], content)
    return paths


def _grid(block: pd.DataFrame) -> pd.DataFrame:
    """Methods down, tasks across; speedup with its interval and tau in one cell."""
    order = [name for name in methods.names() if name in set(block["method"])]
    shown = block.assign(
        text=[_cell_text(row) for row in block.to_dict("records")],
        order=pd.Categorical(block["method"], order, ordered=True),
    )
    grid = shown.pivot_table(index="order", columns="task", values="text", aggfunc="first", observed=True)
    grid = grid[list(dict.fromkeys(block["task"]))].fillna("–")
    grid.index.name = grid.columns.name = None
    return grid


def _cell_text(row: dict[str, Any]) -> str:
    if row["lossless"] == NO_WEIGHTS:
        return NO_WEIGHTS
    low, high = row["speedup_geomean_low"], row["speedup_geomean_high"]
    interval = f" [{low:.2f}, {high:.2f}]" if pd.notna(low) else ""
    return f"{row['speedup_geomean']:.2f}x{interval} / {row['tau_paper']:.2f}"


def _row(group: Group, task: str, found: dict[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(("model", "dtype", "decode", "method"), group, strict=True)) | {"task": task}
    for key, one in found.items():
        row |= {key: one.value, f"{key}_low": one.low, f"{key}_high": one.high}
    return row
