"""What ``measure.nodes=true`` records of every draft node, and the grids that need it from nothing to a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from methods.loading.model import Source, load_model
from tests.support.commands import Command, tiny_settings, write_questions
from tests.support.heads import write_eagle


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def test_hits_explain_what_was_accepted_and_recording_changes_no_text(
    tiny_model_folder: Path, tmp_path: Path, command: Command
) -> None:
    """PLD on a text that repeats itself: its chain is accepted up to the first node that the target did not choose."""
    questions = write_questions(tmp_path / "q.jsonl", [["one two three one two three one two three one two"]])
    settings = [*tiny_settings(tiny_model_folder, tmp_path), f"task.path={questions}", "decode.max_new_tokens=24"]
    assert command("method=pld", "measure.nodes=true", *settings).code == 0
    assert command("method=pld", *settings).code == 0
    with_nodes, without = sorted((tmp_path / "runs").iterdir(), key=lambda folder: "nodes" not in _cell(folder))
    assert "nodes" not in _cell(without), "cells recorded before the switch existed keep their id"
    turns = {run["method"]: run["turns"][0] for run in _block(with_nodes)["runs"]}
    assert "nodes" not in turns["vanilla"]
    nodes, emitted = turns["pld"]["nodes"], turns["pld"]["emitted"]
    assert "confidence" not in nodes, "PLD has none"
    plain = {run["method"]: run["turns"][0] for run in _block(without)["runs"]}
    assert turns["pld"]["output_ids"] == plain["pld"]["output_ids"], "recording changes no text"
    assert "nodes" not in plain["pld"]
    assert len(nodes["hit"]) == len(emitted) - 2, "the prefill is no cycle and the last one is not shown"
    for parents, hits, accepted in zip(nodes["parents"], nodes["hit"], turns["pld"]["accepted"][1:], strict=False):
        assert parents == list(range(len(parents)))
        assert accepted == next((place for place, hit in enumerate(hits) if not hit), len(hits))


def test_table_3_and_figures_5_and_6_run_from_nothing(
    tiny_model_folder: Path, tmp_path: Path, command: Command
) -> None:
    loaded = load_model(Source("folder", str(tiny_model_folder)), dtype="float32", device="cpu")
    head = write_eagle(tmp_path / "head", loaded.target)
    settings = [*tiny_settings(tiny_model_folder, tmp_path), f"methods.eagle2.weights={head}"]
    settings += ["method=[eagle2]", "task.count=2", "decode.max_new_tokens=12"]
    result = command("table=table3", *settings)
    assert result.code == 0, result.err
    rows = pd.read_csv(tmp_path / "tables" / "table3-partial.csv")
    assert len(rows) == 6 * 3, "vanilla, EAGLE-2 and its four ablations, on two tasks and their mean"
    drafted = rows[(rows["method"] != "vanilla") & (rows["task"] != "mean")]["drafted_per_cycle"]
    assert drafted.tolist() == [60.0] * 10, "trees of equal size"

    for figure in ("figure5", "figure6"):
        result = command(f"table={figure}", *settings)
        assert result.code == 0, result.err
        assert [Path(path).suffix for path in result.last_line["written"]] == [".svg", ".png", ".csv", ".md"]
    positions = pd.read_csv(tmp_path / "figures" / "figure5-partial.csv")
    assert set(positions["position"]) == {"P1", "P2", "P3", "P4", "P5", "P6"}
    assert set(positions["decode"]) == {"T=0", "T=1"}
    bins = pd.read_csv(tmp_path / "figures" / "figure6-partial.csv")
    files = (tmp_path / "runs").glob("*alpaca-greedy*/blocks.jsonl")
    lines = [line for path in files for line in path.read_text().splitlines()]
    turns = [turn for line in lines for run in json.loads(line)["runs"] for turn in run["turns"] if "nodes" in turn]
    cycles = [hits for turn in turns for hits in turn["nodes"]["hit"] if len(hits) == 110]
    assert bins["nodes"].sum() == sum(10 * (1 + sum(hits[:10])) for hits in cycles), (
        "ten, and ten after an accepted one"
    )


def _cell(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "cell.json").read_text())["measure"]
    return found


def _block(folder: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((folder / "blocks.jsonl").read_text().splitlines()[0])
    return found
