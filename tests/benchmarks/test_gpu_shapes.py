"""The script that measures time per cycle on a GPU, at a toy shape on a CPU: before anyone pays for the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.benchmarks import gpu_shapes

pytestmark = pytest.mark.model


@pytest.mark.parametrize("runtime", ["hf", "fused"])
def test_the_toy_shape_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    sizes = [f"--runtime={runtime}", "--rounds=2", "--prompt=30", "--tokens=10"]
    gpu_shapes.main(["--tiny", "--device=cpu", "--dtype=float32", *sizes, f"--results={tmp_path}"])
    path = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["written"])
    report = json.loads(path.read_text())
    rows = {row["method"]: row for row in report["rows"]}
    assert list(rows) == ["vanilla", "pld", "lookahead", "eagle", "eagle2"]
    assert {name: rows[name]["rows"] for name in ("vanilla", "eagle", "eagle2")} == {
        "vanilla": 1.0, "eagle": 26.0, "eagle2": 61.0,
    }, "the paper's trees, whatever the shape"  # fmt: skip
    assert (rows["vanilla"]["tau_micro"], rows["vanilla"]["pays_above_tau"]) == (1.0, 1.0)
    assert rows["vanilla"]["joules_per_cycle"] is None
    ours = [turn for turn in report["turns"] if turn["method"] == "eagle2"]
    assert [turn["round"] for turn in ours] == [1, 2], "the warm-up is not measured"
    cycles = sum(len(turn["emitted"]) - 1 for turn in ours)
    assert rows["eagle2"]["draft_ms"] == pytest.approx(sum(turn["phases_ns"]["draft"] for turn in ours) / 1e6 / cycles)
    assert sum(sum(turn["emitted"]) for turn in ours) == 20
