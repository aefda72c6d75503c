"""Three figures of our own, from Table 1's cells: what a draft gains, what its cycle costs, and where that goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Style, Table
from bench.records.block import turns_of
from bench.report.admissible import AdmissibleCell, Evidence, gather
from bench.report.estimators import speedup_total, sums, tau_micro
from bench.report.figures.canvas import HATCHES, INKS, LINES, MARKERS, Drawing, page, panels, shown, styled
from bench.report.layout import ordered
from bench.report.tables import decoding

PHASES = ["draft", "verify", "accept", "commit"]
COSTS = [1.0, 1.5, 2.0, 3.0]


def cost(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """tau against speedup, a point for each method and task; on a line all cycles cost the same."""
    evidence = gather(cells, results)
    rows = []
    for one in evidence.measured:
        for label in (label for label in one.verdicts if label != VANILLA):
            data = sums(one.blocks, one.method_ids[label])
            tau, speedup = float(tau_micro(data)), float(speedup_total(data))
            rows.append(_who(one, label) | {"task": one.cell.task.name, "tau_micro": tau, "speedup_total": speedup,
                                            "cost_of_a_cycle": tau / speedup})  # fmt: skip
    said = (
        "tau_micro (tokens per cycle) against speedup_total. On the line c a cycle costs c times vanilla's, prefill "
        "included: a higher tau pays only if its cycle stays cheap."
    )
    return _drawing(evidence, pd.DataFrame(rows), said, 2.9, _cost_panel)


def split(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """Milliseconds of a cycle by phase, over all tasks, and the speedup that they predict."""
    evidence = gather(cells, results)
    totals: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in evidence.measured:
        for label in one.verdicts:
            total = totals.setdefault(
                tuple(_who(one, label).values()), dict.fromkeys([*PHASES, "cycles", "tokens"], 0.0)
            )  # type: ignore[arg-type]
            for turn in turns_of(one.blocks, one.method_ids[label]):
                total["cycles"] += turn.cycles
                total["tokens"] += turn.cycle_tokens
                for phase in PHASES:
                    total[phase] += turn.phases_ns.get(phase, 0) / 1e6
    rows = []
    for (model, decode, label), total in totals.items():
        cycle = {phase: total[phase] / total["cycles"] for phase in PHASES}
        baseline = totals[model, decode, VANILLA]
        vanilla = sum(baseline[phase] for phase in PHASES) / baseline["cycles"]
        tau, whole = total["tokens"] / total["cycles"], sum(cycle.values())
        if whole:  # over several GPUs phases are not timed
            named = {f"{phase}_ms": value for phase, value in cycle.items()}
            named |= {"cycle_ms": whole, "tau_micro": tau, "predicted_speedup": tau * vanilla / whole}
            rows.append({"model": model, "decode": decode, "method": label} | named)
    said = (
        "Milliseconds per cycle, all tasks together, prefill excluded. predicted_speedup is tau_micro times vanilla's "
        "cycle over the method's."
    )
    return _drawing(evidence, pd.DataFrame(rows), said, 2.6, _split_panel)


def depth(cells: Sequence[Cell], results: Path, table: Table, style: Style) -> Drawing:
    """How many cycles accept at least d draft tokens, over all tasks."""
    evidence = gather(cells, results)
    accepted: dict[tuple[str, str, str], list[int]] = {}
    for one in evidence.measured:
        for label in (label for label in one.verdicts if label != VANILLA):
            found = accepted.setdefault(tuple(_who(one, label).values()), [])  # type: ignore[arg-type]
            found += [count for turn in turns_of(one.blocks, one.method_ids[label]) for count in turn.accepted[1:]]
    rows = [
        {"model": model, "decode": decode, "method": label, "depth": at,
         "share": float(np.mean(np.array(counts) >= at)), "cycles": len(counts)}
        for (model, decode, label), counts in accepted.items()
        for at in range(1, max(counts, default=0) + 1)
    ]  # fmt: skip
    said = "The share of cycles that accept at least d draft tokens, before any cut at the end of the text."
    return _drawing(evidence, pd.DataFrame(rows), said, 2.5, _depth_panel)


def _who(one: AdmissibleCell, label: str) -> dict[str, Any]:
    return {"model": one.cell.model.name, "decode": decoding(one.cell.decode), "method": label}


def _drawing(evidence: Evidence, numbers: pd.DataFrame, said: str, height: float, panel: Any) -> Drawing:
    """A panel for each model and decoding, with one legend for all."""
    figure = page(1.0)
    if not numbers.empty:
        methods = ordered(list(numbers["method"]))
        with styled():
            figure, found = panels(numbers, ["decode"], height)
            for axes, rows in found:
                panel(axes, rows, methods)
            handles, labels = found[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 8), frameon=False)
    return Drawing(figure, numbers, said, evidence.holes, evidence.machine)


def _cost_panel(axes: Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    widest = max(rows["tau_micro"].max() * 1.12, 2.0)
    for at in COSTS:
        axes.plot([1, widest], [1 / at, widest / at], color="0.6", linewidth=0.7, linestyle="--")
        axes.annotate(f"c={at:g}", (widest, widest / at), xytext=(2, 0), textcoords="offset points", fontsize=6,
                      va="center", color="0.3")  # fmt: skip
    for index, method in enumerate(methods):
        chosen = rows[rows["method"] == method]
        axes.scatter(chosen["tau_micro"], chosen["speedup_total"], marker=MARKERS[index % len(MARKERS)], s=20,
                     facecolors=INKS[index % len(INKS)], edgecolors="black", linewidths=0.5, label=shown(method),
                     zorder=3)  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    axes.set(xlabel="tau_micro", ylabel="speedup_total", xlim=(0.95, widest))


def _split_panel(axes: Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    rows = rows.set_index("method").reindex(methods)
    left = np.zeros(len(rows))
    for index, phase in enumerate(PHASES):
        values = rows[f"{phase}_ms"].fillna(0).to_numpy()
        axes.barh(range(len(rows)), values, 0.7, left=left, color=INKS[index], hatch=HATCHES[index], edgecolor="black",
                  linewidth=0.4, label=phase)  # fmt: skip
        left = left + values
    for place, (total, gain) in enumerate(zip(left, rows["predicted_speedup"], strict=True)):
        text = f"{gain:.2f}x" if total else "no sound record"
        axes.annotate(text, (total, place), xytext=(3, 0), textcoords="offset points", fontsize=6, va="center")
    axes.set_yticks(range(len(rows)), [shown(method) for method in methods])
    axes.set(xlabel="ms per cycle; predicted speedup at the end", xlim=(0, left.max() * 1.18))
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _depth_panel(axes: Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    for index, method in enumerate(methods):
        chosen = rows[rows["method"] == method]
        axes.plot(chosen["depth"], chosen["share"], marker=MARKERS[index % len(MARKERS)], markersize=3.5, color="black",
                  markerfacecolor=INKS[index % len(INKS)], linestyle=LINES[index % len(LINES)], linewidth=0.8,
                  label=shown(method))  # fmt: skip
    axes.set(xlabel="depth d", ylabel="cycles accepting at least d")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
