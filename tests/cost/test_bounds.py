"""The cost card: work per cycle as the drafters have it, bounds by hand, and what a machine is measured to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import methods
from bench.cost import bounds, cpu_speed, forecast, model_sizes
from bench.cost.cpu_speed import Speeds
from bench.cost.model_sizes import Size
from methods.decode.target import Target
from methods.heads.cycle_cost import CycleCost, DraftSize
from tests.support.commands import block, cell, turn

SIZE = Size(parameters=1000, cache_elements=10, vocab=20, hidden=5, tied=False)
SPEEDS = Speeds(copy=100.0, multiply=1000.0, taken="2026-01-01")


def test_a_forward_takes_as_long_as_the_slower_of_reading_and_multiplying() -> None:
    # 900 weights and 7 tokens of 10 elements in 2 bytes: 1940 bytes; one row multiplies 1800 times, 60 rows 108,000.
    one, many = (bounds.bound(CycleCost(rows), SIZE, 2, SPEEDS, 7) for rows in (1, 60))
    assert (one.read, one.operations, one.seconds) == (1940, 1800, 19.4)
    assert (many.read, many.operations, many.seconds) == (1940, 108_000, 108.0)
    drafted = bounds.bound(CycleCost(60, passes=6, pass_rows=10, elements=50), SIZE, 2, SPEEDS, 7)
    assert drafted.read == 1940 + 6 * 100
    assert drafted.seconds == pytest.approx(108.0 + 6 * max(100 / 100, 1000 / 1000))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("vanilla", {}),
        ("pld", {"num_draft": 7}),
        ("eagle2", {"total_tokens": 59, "depth": 6, "top_k": 10, "rerank": True}),
        ("eagle2", {"total_tokens": 59, "depth": 2, "top_k": 3, "rerank": True}),
        ("eagle2", {"total_tokens": 59, "depth": 6, "top_k": 4, "rerank": False}),
        ("eagle", {"tree": "eagle_25"}),
        ("medusa", {"tree": "mc_sim_7b_63"}),
    ],
)
def test_rows_of_a_cycle_are_those_the_method_asks_for(
    name: str, knobs: dict[str, Any], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_sizes, "of_head", lambda weights: 50)
    work = bounds.cost_of(name, {**knobs, "weights": "x"}, SIZE)
    assert work is not None
    if name in ("vanilla", "pld"):
        assert work.rows == methods.load(name, knobs, target).max_rows
    elif name == "eagle2":
        assert work.rows == methods.configure(name, knobs)[1].nodes + 1
    else:
        assert work.rows == {"eagle": 26, "medusa": 64}[name]


def test_a_method_that_nothing_is_known_of_has_no_line() -> None:
    assert bounds.cost_of("elsewhere", {"weights": None}, SIZE) is None
    assert bounds.cost_of("pld", {}, SIZE) is None


def test_the_card_after_a_run_holds_the_measured_speedup_against_the_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_sizes, "of_target", lambda model: SIZE)
    one = cell(methods={"pld": {"num_draft": 3}})
    facts = {"prompt_tokens": 7, "end_ns": [1, *(int(k * 100e9) + 1 for k in range(1, 10))]}
    slow = turn([1] * 10, rows=[7, *[1] * 9], **facts)
    fast = turn([1, 3, 3, 3], rows=[7, 4, 4, 4], **{**facts, "end_ns": facts["end_ns"][:4]})
    record = block("a", {"vanilla": [slow], "pld": [fast]}, ids=one.method_ids)
    title, vanilla, pld = bounds.after(one, [record], SPEEDS)
    assert title.startswith(one.name)
    found = bounds._cycles([record], one.method_ids)
    assert found["pld"].tau == 3
    assert "vanilla: 1e+05 ms a cycle, bound 4.08e+04 ms: 41 % reached" in vanilla  # 4 x (900 + 12 tokens x 10) bytes
    assert "tau 3.00 predicts " in pld
    assert pld.endswith("measured 3.00x")  # cycles as long as vanilla's
    assert bounds.after(one, [], SPEEDS) == []
    other = cell(methods={"pld": {"num_draft": 4}})
    assert bounds.after(other, [record], SPEEDS) == [], "another setting of the same name"


def test_a_machine_is_measured_once_per_dtype(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTBENCH_CACHE", str(tmp_path / "cache"))
    first = cpu_speed.speeds("float32")
    assert first.copy > 0
    assert first.multiply > 0
    monkeypatch.setattr(cpu_speed, "_measure", lambda dtype: Speeds(1.0, 2.0, "now"))
    assert cpu_speed.speeds("float32") == first
    assert cpu_speed.known("bfloat16") is None
    assert cpu_speed.speeds("bfloat16") == Speeds(first.copy, 2.0, "now"), "copying knows no dtype"
    kept = tmp_path / "cache" / "speeds.json"
    assert len(json.loads(kept.read_text())) == 2
    kept.write_text('{"a": {"copy": 1}}')
    assert cpu_speed.known("float32") is None
    assert cpu_speed.speeds("float32") == Speeds(1.0, 2.0, "now")


def test_a_chain_s_passes_follow_its_rows_and_a_draft_of_its_own_reads_its_own_output_matrix() -> None:
    knobs = {"num_draft": 5, "weights": {"kind": "hub", "id": "double7/vicuna-68m", "revision": None}}
    work = bounds.cost_of("sps", knobs, SIZE)
    assert work is not None
    assert (work.rows, work.passes) == (6, 5)
    assert work.elements == 68_030_208 - 32_000 * 768
    assert (work.at(3).rows, work.at(3).passes) == (3, 2)


def test_what_an_outside_method_calls_tree_is_not_read() -> None:
    assert methods.cycle_cost("elsewhere", {"tree": ["binary"]}, DraftSize(50, 20, 5)) is None


def test_a_head_is_counted_in_its_files_and_one_that_nothing_tells_of_is_taken_for_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, shape in enumerate([(3, 5), (7,)]):
        save_file({"x": torch.zeros(shape)}, tmp_path / f"model-{number}.safetensors")
    known, unknown = {"kind": "folder", "id": str(tmp_path)}, {"kind": "hub", "id": "nobody/head"}
    assert (model_sizes.of_head(known), model_sizes.of_head(unknown)) == (22, None)
    monkeypatch.setattr(model_sizes, "of_target", lambda model: SIZE)
    with_each = [
        forecast.footprint(cell(methods={"eagle": {"weights": weights}} if weights else {}))
        for weights in (None, known, unknown)
    ]
    bare, counted, guessed = (found.fixed_bytes for found in with_each if found)
    assert (counted - bare, guessed - bare) == (4 * 22, 4 * 200)


def test_damaged_weights_have_no_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 2}')
    for content in (b"", b"\xff" * 16, (9).to_bytes(8, "little") + b"no json"):
        model_sizes._parameters.cache_clear()
        (tmp_path / "model.safetensors").write_bytes(content)
        assert model_sizes._of_folder(tmp_path) is None
