"""A report on a page, as the paper lays its tables out: models and methods down, tasks and estimators across.

Markdown, LaTeX (booktabs and graphicx), CSV and parquet. The first two show one pair of estimators, the others all. A
JSON file beside them holds title, caption and that pair, for the page that is made of what lies on the disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

import methods
from bench.plan.cells import VANILLA
from bench.plan.identity import registered
from bench.plan.schema import Style, Table
from bench.records.store import own_folder
from bench.report.tables import MEAN, NEW, NO_WEIGHTS, Doubt, Report
from methods.common.atomic_write import write_atomically

SHOWN = {"paper": ("speedup_paper", "tau_paper"), "ours": ("speedup_geomean", "tau_micro")}
MEANING = {
    "speedup_paper": "the questions' mean tokens/s over vanilla's mean, prefill included",
    "speedup_geomean": "the geometric mean over questions of tokens/s over vanilla's in its block, prefill included",
    "tau_paper": "the mean over questions of tokens over (cycles - 1 per turn), which is what the paper printed",
    "tau_micro": "all tokens over all cycles",
}
DIFFERS = "≠"
UNSTABLE, UNEQUAL = "*", "†"
_SIGNS = (
    f"{UNSTABLE} the speedup's interval is wider than ±10 %, or rests on too few questions; {UNEQUAL} not every turn "
    "has vanilla's tokens (near-ties, or draws of the method's own): the Markdown table has the counts."
)


def markdown(report: Report, title: str, style: Style) -> str:
    """The page a reader sees: means first, then the table, then what stands behind it."""
    parts = [f"# {title}\n"]
    if not report.rows.empty:
        shown = SHOWN[style.estimator]
        means = report.rows[report.rows["task"] == MEAN]
        if not means.empty:
            parts.append(f"\n## Mean over tasks\n\n{_summary(means, shown).to_markdown(index=False)}\n")
        for (model, dtype, decode), block in report.rows.groupby(["model", "dtype", "decode"], sort=False):
            grid = _grid(block, shown)
            grid.columns = [f"{task} {name}" for task, name in grid.columns]
            parts.append(f"\n## {model}, {dtype}, {decode}\n\n{grid.to_markdown()}\n")
            parts.append(f"\n{_evidence(block).to_markdown(index=False, floatfmt='.2f')}\n")
    parts.append(f"\n{caption(report, style)}\n")
    if not report.printed.empty:
        parts.append("\n## Printed\n\nspeedup / tau as published, for the models that this table does not hold:\n")
        parts.append(f"\n{report.printed.to_markdown(index=False)}\n")
    return "".join(parts)


def explained(style: Style) -> list[tuple[str, str]]:
    """The estimators that a page shows, and what each means."""
    return [(name, MEANING[name]) for name in SHOWN[style.estimator]]


def caption(report: Report, style: Style) -> str:
    """What every number is, where it was measured, with which settings."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in explained(style))
    text = (
        f"Each cell: estimate [95 % interval]. {meanings}. Intervals come "
        "from Student's t over questions, none below three; mean is the unweighted mean over tasks. "
        "A turn is identical if it has vanilla's tokens, a near-tie if it differs only where the target's own choice "
        "is within rounding."
    )
    if report.rows.filter(like="_published").notna().any(axis=None):
        text += (
            f" In parentheses what was printed; {DIFFERS} marks a printed value outside our interval, (new) a cell "
            "that the paper does not have. Speedups depend on the machine; tau on the cap on new tokens."
        )
    text += f"\n\nMachine: {report.machine}. {report.protocol}"
    for name, knobs in report.settings.items():
        shown = ", ".join(f"{key}={_short(value)}" for key, value in knobs.items())
        text += f"\n{name}: {shown or 'no settings'}."
    for name in ("tau_question", "tau_paper"):
        short = report.rows[report.rows.get(f"{name}_without", pd.Series(0, report.rows.index)) > 0]
        for row in short.to_dict("records"):
            text += (
                f"\n{name} of {row['method']} on {row['task']}, {row['decode']}: without {row[f'{name}_without']:.0f} "
                f"of {row['questions']:.0f} questions, whose answers took too few cycles to have one."
            )
    keys = ("model", "dtype", "decode", "task")
    again: dict[str, float] = {}
    for row in report.rows.to_dict("records"):
        if row.get("measured_again", 0) > 0:
            again[", ".join(row[key] for key in keys)] = row["measured_again"]
    for name, count in again.items():
        why = "a GPU having been throttled or shared, or a graph recorded"
        text += f"\n{name}: {count:.0f} of the blocks were measured again, {why}."
    if report.holes:
        text += "\n\nHoles:\n" + "\n".join(f"- {hole}" for hole in report.holes)
    return text


def latex(report: Report, title: str, style: Style) -> str:
    """A float across both columns: ``\\input`` it after ``\\usepackage{booktabs,graphicx}``."""
    if report.rows.empty:
        return ""
    shown = SHOWN[style.estimator]
    keys = ["decode", "model", "dtype"]
    blocks = {key: _grid(block, shown, report.doubts) for key, block in report.rows.groupby(keys, sort=False)}
    whole = pd.concat(blocks, names=keys).droplevel("dtype").fillna("–")
    whole = whole.rename_axis(index=[None] * whole.index.nlevels, columns=[None, None])
    whole = whole.rename(columns={"speedup_paper": "speedup", "speedup_geomean": "speedup"}, level=1)
    whole = whole.rename(columns={"tau_paper": "τ", "tau_micro": "τ"}, level=1)
    styled = whole.style.format(escape="latex").format_index(escape="latex").format_index(escape="latex", axis=1)
    body = styled.to_latex(hrules=True, multirow_align="naive", multicol_align="c")
    head, rule, rest = body.partition("\\midrule\n")
    lines, decodes = rest.splitlines(keepends=True), [str(key[0]) for key in whole.index]
    for place, (before, decode) in enumerate(pairwise(decodes), 1):
        if decode != before:
            lines[place] = rule + lines[place]
    body = head + rule + "".join(lines)
    said = _plain(f"{title}. {caption(report, style)} {_SIGNS}")
    text = (
        "% needs \\usepackage{booktabs,graphicx}\n\\begin{table*}\n\\centering\n"
        f"\\caption{{{said}}}\n\\resizebox{{\\textwidth}}{{!}}{{%\n{body}}}\n\\end{{table*}}\n"
    )
    return text.replace("τ", r"$\tau$").replace(DIFFERS, r"$\neq$").replace("–", "--")


def _signs(row: dict[str, Any], doubt: Doubt | None) -> str:
    """LaTeX footnote marks: * unstable, † not token-identical; Markdown says it in words."""
    if row["method"] == VANILLA or doubt is None:
        return ""
    return UNSTABLE * doubt.unstable + UNEQUAL * doubt.unequal


def write(report: Report, table: Table, results: Path, style: Style) -> list[Path]:
    """Write results/tables/<name>.{md,csv,tex,parquet,json} and return the paths."""
    folder = own_folder(results / "tables")
    name = f"{table.name}-partial" if report.holes and not table.name.endswith("-partial") else table.name
    contents: dict[str, str | bytes] = {
        "md": markdown(report, table.title, style),
        "csv": report.rows.to_csv(index=False),
        "tex": latex(report, table.title, style),
        "parquet": report.rows.to_parquet(index=False),
        "json": json.dumps(_words(report, table.title, style), indent=1) + "\n",
    }
    paths = []
    for suffix, content in contents.items():
        paths.append(folder / f"{name}.{suffix}")
        write_atomically(paths[-1], content)
    return paths


def _words(report: Report, title: str, style: Style) -> dict[str, Any]:
    """What the page says of a table beside its numbers."""
    paragraphs = [line for line in caption(report, style).splitlines() if line]
    return {"title": title, "caption": paragraphs, "estimators": explained(style)}


def ordered(labels: list[str]) -> list[str]:
    """Rows in the paper's order of methods; variants of a method in the order they were given."""
    known = methods.names()
    return sorted(dict.fromkeys(labels), key=lambda label: known.index(registered(label)))


def _grid(block: pd.DataFrame, shown: tuple[str, str], doubts: Sequence[Doubt | None] = ()) -> pd.DataFrame:
    """Methods down, tasks and their two estimators across; with ``doubts``, one a row of the report, marks at them."""
    tasks = list(dict.fromkeys(block["task"]))
    cells = {(row["method"], row["task"]): row for row in block.to_dict("records")}
    signs = {key: _signs(row, doubts[place]) for place, (key, row) in zip(block.index, cells.items(), strict=True)} \
        if doubts else {}  # fmt: skip
    labels = ordered(list(block["method"]))
    data = [
        [_cell(cells.get((label, task)), name, signs.get((label, task), "")) for task in tasks for name in shown]
        for label in labels
    ]
    return pd.DataFrame(data, labels, pd.MultiIndex.from_product([tasks, shown]))


def _cell(row: dict[str, Any] | None, name: str, signs: str = "") -> str:
    if row is None:
        return "–"
    if row["lossless"] == NO_WEIGHTS:
        return NO_WEIGHTS
    unit = "x" if name.startswith("speedup") else ""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    text = f"{row[name]:.2f}{unit}" + signs * bool(unit) + (f" [{low:.2f}, {high:.2f}]" if pd.notna(low) else "")
    if row.get("out_of_memory", 0) > 0:
        text += f" (without {row['out_of_memory']:.0f}: out of memory)"
    if row.get(f"{name}_source") == NEW:
        return f"{text} (new)"
    if pd.notna(row.get(f"{name}_published")):
        text += f" ({row[f'{name}_published']:.2f}{'' if row[f'{name}_agrees'] else f' {DIFFERS}'})"
    return text


def _summary(means: pd.DataFrame, shown: tuple[str, str]) -> pd.DataFrame:
    """Models and methods down, decodings across: the paper's Mean column alone."""
    cells = {(row["model"], row["method"], row["decode"]): row for row in means.to_dict("records")}
    decodes = list(dict.fromkeys(means["decode"]))
    rows = []
    for model in dict.fromkeys(means["model"]):
        for method in ordered(list(means[means["model"] == model]["method"])):
            found = {decode: cells.get((model, method, decode)) for decode in decodes}
            columns = {f"{decode} {name}": _cell(row, name) for decode, row in found.items() for name in shown}
            rows.append({"model": model, "method": method} | columns)
    return pd.DataFrame(rows)


def _evidence(block: pd.DataFrame) -> pd.DataFrame:
    rows = block[(block["task"] != MEAN) & (block["lossless"] != NO_WEIGHTS)]
    columns = ["method", "task", "questions", "turns", "drafted_per_cycle", "tau_micro", "tau_question", "tau_paper"]
    columns += ["speedup_paper", "speedup_total", "speedup_geomean", "tokens_per_s"]
    columns += ["joules_per_token"] * bool(rows["joules_per_token"].notna().any()) + ["lossless", "stability"]
    return rows[columns].astype({"questions": int, "turns": int})


def _short(value: Any) -> str:
    """A setting on one line. Weights go by their folder and hash: a path says where a file lay, not what it is."""
    if isinstance(value, dict) and "id" in value:
        return f"{Path(str(value['id'])).name}@{str(value.get('sha256') or value.get('revision'))[:12]}"
    return str(value)


def _plain(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    for sign in "\\{}":  # never in our own words; in a setting they could end the caption
        text = text.replace(sign, "")
    return re.sub(r"([_%&#$])", r"\\\1", text).replace("~", " ").replace("^", " ").replace("\n", " ")
