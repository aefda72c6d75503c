"""Every number of a table once more, from the files alone: no import from bench, nothing but JSON and arithmetic."""

import json
import math
from pathlib import Path

import numpy as np
from scipy.stats import t


def audit(folder: Path, method_id: str) -> dict[str, tuple[float, float, float]]:
    """Each estimator of a method in a cell's folder with its 95 % interval: Student's, of leaving questions out."""
    rows: dict[str, list[float]] = {}
    for line in (folder / "blocks.jsonl").read_text().splitlines():
        block = json.loads(line)
        runs = {run["method_id"]: run["turns"] for run in block["runs"]}
        row = rows.setdefault(block["question_id"], [0.0] * 7)
        for turn in runs[method_id]:
            cycles = turn["emitted"][1:]
            row[0] += sum(cycles)
            row[1] += len(cycles)
            row[2] += len(cycles) - 1 if cycles else 0
            row[3] += len(turn["output_ids"])
            row[4] += turn["end_ns"][-1]
        for turn in runs["vanilla"]:
            row[5] += len(turn["output_ids"])
            row[6] += turn["end_ns"][-1]

    def estimates(chosen: list[list[float]]) -> dict[str, float]:
        total = [math.fsum(row[column] for row in chosen) for column in range(7)]
        ours, theirs = ([row[i] / row[i + 1] for row in chosen] for i in (3, 5))
        per_cycle = [row[0] / row[1] for row in chosen if row[1]]
        per_index = [row[0] / row[2] for row in chosen if row[2]]
        return {
            "tau_micro": total[0] / total[1] if total[1] else math.nan,
            "tau_question": math.fsum(per_cycle) / len(per_cycle) if per_cycle else math.nan,
            "tau_paper": math.fsum(per_index) / len(per_index) if per_index else math.nan,
            "speedup_paper": math.fsum(ours) / math.fsum(theirs),
            "speedup_total": total[3] / total[4] / (total[5] / total[6]),
            "speedup_geomean": math.exp(math.fsum(map(math.log, np.divide(ours, theirs))) / len(ours)),
        }

    questions = list(rows.values())
    count = len(questions)
    without = [estimates(questions[:left] + questions[left + 1 :]) for left in range(count)]
    found = {}
    for name, value in estimates(questions).items():
        logs = [math.log(one[name]) for one in without]
        centre = math.fsum(logs) / count
        error = math.sqrt((count - 1) / count * math.fsum((log - centre) ** 2 for log in logs))
        factor = math.exp(float(t.ppf(0.975, count - 1)) * error)
        found[name] = (value, value / factor, value * factor)
    return found
