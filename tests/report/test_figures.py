"""Figures: the numbers in them against plain Python, the same bytes every time, and nothing drawn where nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from bench.plan.cells import VANILLA, Cell, Question
from bench.plan.schema import Style, Table
from bench.records.block import Nodes
from bench.records.store import Store
from bench.report import figures
from bench.report.figures.calibration import _panel, expected_calibration_error, falls
from methods.common.errors import ConfigError
from tests.support.commands import block, cell, turn

MACHINE = {"cpu": "A CPU", "cores": 2, "gpus": []}
PAPER = Style("paper")
SIX = [0, 0, 1, 1, 2, 2]


def static_nodes(rng: np.random.Generator, cycles: int, luck: float, sampled: bool) -> dict[str, list[list[Any]]]:
    """The six-node tree: the target agrees with the better of two siblings mostly, with the other one seldom."""
    facts: dict[str, list[list[Any]]] = {"parents": [], "hit": [], "confidence": []}
    for _ in range(cycles):
        hits = []
        for first in (luck, luck - 0.1, luck - 0.25):
            coin = rng.random()
            hits += [int(coin < first), int(first <= coin < first + 0.12)]
        facts["parents"].append(SIX)
        facts["hit"].append(hits)
        facts["confidence"].append([0.5, 0.2] * 3)
        if sampled:
            facts.setdefault("target", []).append([0.6, 0.1] * 3)
    return facts


def calibrated_nodes(rng: np.random.Generator, cycles: int) -> dict[str, list[list[Any]]]:
    """Ten nodes after the root and ten after each of those; a token is the target's as often as the draft says."""
    parents = [0] * 10 + [1 + child // 10 for child in range(100)]
    facts: dict[str, list[list[Any]]] = {"parents": [], "hit": [], "confidence": []}
    for _ in range(cycles):
        confidence = np.concatenate([rng.dirichlet(np.full(11, 0.15))[:10] for _ in range(11)])
        hits = np.zeros(110, dtype=int)
        for group in range(11):
            part = confidence[group * 10 : group * 10 + 10]
            if (found := rng.random()) < part.sum():
                hits[group * 10 + int(np.searchsorted(part.cumsum(), found, side="right"))] = 1
        facts["parents"].append(parents)
        facts["hit"].append(hits.tolist())
        facts["confidence"].append([round(float(value), 6) for value in confidence])
    return facts


def recorded(results: Path, make: Any, questions: int = 12, temperature: float = 0.0, **model: Any) -> Cell:
    """A finished cell of ``measure.nodes=true`` whose method is called eagle2."""
    asked = tuple(Question(f"q{number}", "toy", ("?",)) for number in range(questions))
    made = cell(measure={"nodes": True}, methods={"eagle2": {"top_k": 2}}, questions=asked, model=model,
                decode={"temperature": temperature}, task={"name": "alpaca"})  # fmt: skip
    store = Store(made.folder(results))
    with store.writing():
        store.write_session("s", {"hardware": MACHINE})
        for number, question in enumerate(asked):
            nodes = Nodes(**make(number))
            turns = [turn([1, 4, 4], 3.0, gaps=[], nodes=nodes, drafted=[0, 6, 6], accepted=[0, 3, 3])]
            vanilla = [turn([1] * 9, 9.0, gaps=[], drafted=[0] * 9, accepted=[0] * 9)]
            runs = {VANILLA: vanilla, "eagle2": turns}
            store.append_block(block(question.id, runs, ids=made.method_ids, session="s"))
        store.mark_done({"method_ids": list(made.method_ids.values())})
    return made


def table(figure: str, name: str = "toy") -> Table:
    return Table(name, "A title", ["eagle2"], ["alpaca"], ["greedy"], figure=figure)


def test_positions_are_averaged_per_question_with_and_without_their_prefix(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    facts = [static_nodes(rng, 30, 0.5 + 0.03 * number, sampled=False) for number in range(12)]
    text, holes, paths = figures.write([recorded(tmp_path, lambda n: facts[n])], table("positions"), tmp_path, PAPER)
    assert holes == []
    assert [path.suffix for path in paths] == [".svg", ".png", ".csv", ".md"]
    numbers = pd.read_csv(paths[2]).set_index(["rate", "position"])
    for node, parent in enumerate(SIX):
        alone, taken = [], []
        for each in facts:
            hits = each["hit"]
            alone.append(np.mean([hit[node] for hit in hits]))
            taken.append(np.mean([hit[node] and (parent == 0 or hit[parent - 1]) for hit in hits]))
        for rate, expected in (("conditional, argmax", alone), ("unconditional", taken)):
            found = numbers.loc[(rate, f"P{node + 1}")]
            assert found["mean"] == pytest.approx(np.mean(expected), abs=1e-12)
            assert found["std_over_questions"] == pytest.approx(np.std(expected, ddof=1), abs=1e-12)
            assert found["questions"] == 12
    assert "the maximum is P1" in text
    assert "P1 the highest and P6 the lowest, holds" in text


def test_at_t1_the_conditional_rate_is_the_mean_of_min_1_p_over_q(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = recorded(tmp_path, lambda n: static_nodes(rng, 10, 0.6, sampled=True), temperature=1.0)
    _, _, paths = figures.write([made], table("positions"), tmp_path, PAPER)
    numbers = pd.read_csv(paths[2]).set_index(["rate", "position"])["mean"]
    assert numbers["conditional, min(1, p/q)"].tolist() == pytest.approx([1.0, 0.5] * 3)


def test_a_claim_that_fails_is_said_to_fail(tmp_path: Path) -> None:
    facts = {"parents": [SIX] * 4, "hit": [[0, 1, 0, 0, 1, 0]] * 4, "confidence": [[0.5] * 6] * 4}
    text, _, _ = figures.write([recorded(tmp_path, lambda n: facts)], table("positions"), tmp_path, PAPER)
    assert "does NOT hold" in text


def test_trees_that_change_have_no_positions(tmp_path: Path) -> None:
    facts = {"parents": [SIX, [0, 1]], "hit": [[0] * 6, [0, 0]], "confidence": [[0.5] * 6, [0.5] * 2]}
    with pytest.raises(ConfigError, match="one static tree"):
        figures.write([recorded(tmp_path, lambda n: facts)], table("positions"), tmp_path, PAPER)


def test_calibration_counts_nodes_with_an_accepted_prefix_in_twenty_bins(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    facts = [calibrated_nodes(rng, 25) for _ in range(12)]
    text, _, paths = figures.write([recorded(tmp_path, lambda n: facts[n])], table("calibration"), tmp_path, PAPER)
    bins = pd.read_csv(paths[2])
    counted = [[0, 0] for _ in range(20)]
    for each in facts:
        for parents, hits, confidence in zip(each["parents"], each["hit"], each["confidence"], strict=True):
            for parent, hit, sure in zip(parents, hits, confidence, strict=True):
                if parent == 0 or hits[parent - 1]:
                    counted[min(int(sure * 20), 19)][0] += 1
                    counted[min(int(sure * 20), 19)][1] += hit
    assert bins["nodes"].tolist() == [count for count, _ in counted]
    rates = [hit / count if count else float("nan") for count, hit in counted]
    assert bins["acceptance"].tolist() == pytest.approx(rates, abs=1e-12, nan_ok=True)
    assert expected_calibration_error(bins) < 0.02, "these confidences are true"
    assert falls(bins) == []
    assert f"{bins['nodes'].sum()} draft nodes" in text
    assert "the bins rise monotonically within their errors" in text


def test_a_bin_that_falls_beyond_its_error_is_named() -> None:
    bins = pd.DataFrame({"from": [0.1, 0.5, 0.9], "nodes": 9, "standard_error": [0.2, 0.1, 0.2]})
    bins["mean_confidence"] = bins["acceptance"] = bins["from"]
    above, below = plt.figure().subplots(2)
    _panel(above, below, bins, "")
    (bars,) = (one for one in above.collections if isinstance(one, LineCollection))
    ends = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    plt.close("all")
    np.testing.assert_allclose(ends, [(0, 0.492), (0.304, 0.696), (0.508, 1)], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["positions", "calibration", "bars", "cost", "depth"])
def test_a_figure_is_the_same_bytes_every_time(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    facts = [static_nodes(rng, 20, 0.6, sampled=False) for _ in range(4)]
    made = recorded(tmp_path, lambda n: facts[n], questions=4)
    _, _, paths = figures.write([made], table(name), tmp_path, PAPER)
    before = [path.read_bytes() for path in paths]
    assert before[1].startswith(b"\x89PNG")
    _, _, paths = figures.write([made], table(name), tmp_path, PAPER)
    assert [path.read_bytes() for path in paths] == before


def test_without_records_there_is_no_picture_and_a_hole(tmp_path: Path) -> None:
    made = recorded(tmp_path, lambda n: static_nodes(np.random.default_rng(0), 3, 0.5, sampled=False))
    empty = replace(made, task=replace(made.task, name="elsewhere"))
    for name in figures.DRAWINGS:
        text, holes, paths = figures.write([empty], table(name), tmp_path, PAPER)
        assert paths == []
        assert holes == [f"{empty.name}: 12 of 12 blocks to run"]
        assert holes[0] in text
    assert not (tmp_path / "figures").exists()


def test_a_picture_with_a_hole_does_not_take_the_place_of_the_whole_one(tmp_path: Path) -> None:
    made = recorded(tmp_path, lambda n: static_nodes(np.random.default_rng(0), 3, 0.5, sampled=False))
    empty = replace(made, task=replace(made.task, name="elsewhere"))
    _, _, paths = figures.write([made, empty], table("positions", "figure5"), tmp_path, PAPER)
    assert {path.stem for path in paths} == {"figure5-partial"}


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"table\.figure=pie is not known"):
        figures.write([], table("pie"), Path("nowhere"), PAPER)


def test_printed_values_stand_beside_bars(tmp_path: Path) -> None:
    made = recorded(tmp_path, lambda n: static_nodes(np.random.default_rng(0), 3, 0.5, sampled=False), name="vicuna7b")
    _, _, paths = figures.write([made], table("bars", "figure2"), tmp_path, PAPER)
    numbers = pd.read_csv(paths[2]).set_index(["model", "method"])
    ours = numbers.loc[("vicuna7b", "eagle2")]
    assert (ours["value"], ours["printed"]) == (3.0, 3.62)
    assert numbers.loc[("llama3instruct70b", "sps"), "printed"] == 1.41
    assert np.isnan(numbers.loc[("llama3instruct70b", "sps"), "value"])
