"""Plans: what a grid costs and needs, what cannot fit, and that many cells are no more work than they must be."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cost import cpu_speed, forecast, gpu_specs, model_sizes, plan_status
from bench.plan import cells as plan
from bench.plan.cells import Cell, Question
from bench.plan.schema import Plan
from bench.records import hardware
from bench.records.store import Store
from methods.common.errors import ConfigError
from tests.support.commands import block, cell, turn

VICUNA: dict[str, Any] = {"name": "v", "id": "lmsys/vicuna-7b-v1.3", "revision": None, "dtype": "float16"}
LLAMA70: dict[str, Any] = {**VICUNA, "id": "meta-llama/Llama-2-70b-chat-hf"}
H100 = Plan(dry_run=True, status=False, gpu="h100", gpus=1)


@pytest.fixture(autouse=True)
def no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hardware, "_gpus", list)
    for name in ("speeds", "known"):
        monkeypatch.setattr(cpu_speed, name, lambda dtype: cpu_speed.Speeds(20e9, 1e12, "2026-01-01"))


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict[str, Any]]:
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


def test_the_list_agrees_with_counting_the_matrices_of_the_published_configs() -> None:
    def llama(vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int) -> tuple[int, int]:
        wide = hidden * kv * (hidden // heads)
        layer = 2 * hidden**2 + 2 * wide // hidden * hidden + 3 * hidden * inner + 2 * hidden
        return 2 * vocab * hidden + layers * layer + hidden, layer + 2 * hidden**2 + hidden

    listed = json.loads((Path(model_sizes.__file__).parents[1] / "data" / "model_sizes.json").read_text())
    for target, head, shape in (
        ("lmsys/vicuna-7b-v1.3", "yuhuili/EAGLE-Vicuna-7B-v1.3", (32000, 4096, 11008, 32, 32, 32)),
        ("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE-Vicuna-13B-v1.3", (32000, 5120, 13824, 40, 40, 40)),
        ("meta-llama/Llama-2-70b-chat-hf", "yuhuili/EAGLE-llama2-chat-70B", (32000, 8192, 28672, 80, 64, 8)),
        (
            "meta-llama/Meta-Llama-3-8B-Instruct",
            "yuhuili/EAGLE-LLaMA3-Instruct-8B",
            (128256, 4096, 14336, 32, 32, 8),
        ),
    ):
        assert (listed[target]["parameters"], listed[head]["parameters"]) == llama(*shape)
    assert listed["lmsys/vicuna-7b-v1.3"]["parameters"] == 6_738_415_616  # as its index file says


def test_a_plan_without_records_rests_on_the_roofline_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = cell(model=VICUNA)
    assert plan_status.price([one], tmp_path, H100) == 0
    (line,), facts = printed(capsys)
    # Three turns of at most 32 tokens, vanilla and one method, each token reading 13.5 GB at 60 % of 3,350 GB/s.
    hours = 3 * 32 * 2 * (2 * 6_738_415_616 / (0.6 * 3350e9)) / 3600
    assert f"2 blocks to run  {hours:.3g} GPU-hours (at most, roofline h100)  memory 15." in line
    assert line.endswith("download 13.5 GB")
    assert facts == {
        "cells": 1, "blocks_to_run": 2, "hours": round(hours, 2), "cells_unpriced": 0, "download_gb": 13.5,
        "device": "1 x h100", "does_not_fit": [],
    }  # fmt: skip


def test_on_a_cpu_without_records_the_measured_bandwidth_stands_in_and_a_card_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = cell(model=VICUNA, methods={"pld": {"num_draft": 10}})
    plan_status.price([one, replace(one)], tmp_path, replace(H100, gpu=None))
    out, err = capsys.readouterr()
    hours = 3 * 32 * 2 * (2 * 6_738_415_616 / (0.6 * 20e9)) / 3600
    assert f"{hours:.3g} machine-hours (at most, roofline measured here)" in out
    # A token reads 13.2 GB of weights (all but the embedding) and 512 tokens of 0.52 MB; 11 rows multiply as long.
    read = 2 * (6_738_415_616 - 131_072_000 + 512 * 2 * 32 * 32 * 128)
    first, second = err.splitlines()
    assert f"a token reads {read / 1e9:.2f} GB, at least {read / 20e9 * 1e3:.3g} ms here" in first
    assert second.startswith("  pld: 11 rows and 0 draft forwards, 13.48 GB and 145 Gflop a cycle")
    assert second.endswith("pays from tau 1.00")


@pytest.mark.parametrize(
    ("gpu", "records"),
    [(None, True), ("h100", False), ("a100_80gb", True)],
    ids=["made on a CPU, planned for it", "made on another GPU", "made on this GPU"],
)
def test_records_count_where_they_were_made_on_the_same_kind_of_device(
    gpu: str | None, records: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = cell(model=VICUNA), cell(model=VICUNA, decode={"name": "t1", "temperature": 1.0})
    store = Store(one.folder(tmp_path))
    made_on = [{"name": "NVIDIA A100-SXM4-80GB", "memory": "81920 MiB"}] if gpu else []
    with store.writing():
        store.write_session("s", {"hardware": {"gpus": made_on, "device": "cuda:0" if gpu else "cpu"}})
        runs = {"vanilla": [turn([1] * 10, seconds=5.0)], "pld": [turn([5, 5], seconds=1.0)]}
        store.append_block(block("a", runs, session="s"))
    plan_status.price([one, other], tmp_path, replace(H100, gpu=gpu))
    lines, _ = printed(capsys)
    if records:
        # The other cell: three turns of ten tokens at 0.5 s and 0.1 s each. This one: its second question, two turns.
        assert f"{3 * 10 * 0.6 / 3600:.3g} " in lines[1]
        assert "(records of toy greedy, 1 blocks)" in lines[1]
        assert "(records of this cell, 1 blocks)" in lines[0]
    else:
        assert "roofline h100" in lines[1]


def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = cell(model={**LLAMA70, "name": "seventy"})
    assert plan_status.price([whole, cell(model=VICUNA)], tmp_path, H100) == 2
    lines, facts = printed(capsys)
    assert facts["does_not_fit"] == ["seventy"]
    assert [line.endswith("does not fit") for line in lines[:2]] == [True, False]
    assert lines[2] == (
        "does not fit: seventy in float16 needs 140.0 GB, one has 80.0 GB; what would do: model.device=map on "
        "2 of h100, or a larger GPU (plan.gpu=h200 asks about one)"
    )
    spread = cell(model={**LLAMA70, "device": "map"})
    assert plan_status.price([spread], tmp_path, replace(H100, gpus=2)) == 0
    assert plan_status.price([cell(model={**LLAMA70, "device": "map", "dtype": "float32"})], tmp_path, H100) == 2
    assert "4 of h100, or model.dtype=bfloat16" in capsys.readouterr().out


def test_a_run_refuses_before_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [{"name": "NVIDIA GeForce RTX 3090", "driver": "1", "memory": "24576 MiB"}]
    monkeypatch.setattr(hardware, "_gpus", lambda: here)
    plan_status.refuse_too_large([cell(model=VICUNA)], H100)
    with pytest.raises(ConfigError, match=r"needs 29.0 GB, one has 25\.8 GB; what would do: .*bfloat16"):
        plan_status.refuse_too_large([cell(model={**VICUNA, "dtype": "float32"})], H100)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"), ("NVIDIA A100-PCIE-40GB", "a100_40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100_pcie"), ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"), ("NVIDIA L4", "l4"), ("Tesla T4", "t4"), ("NVIDIA X1", None),
    ],
)  # fmt: skip
def test_a_gpu_is_recognised_by_its_driver_s_name(name: str, ours: str | None) -> None:
    assert gpu_specs.recognised(name) == ours


def test_an_unknown_gpu_and_an_index_outside_the_grid_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^plan.gpu=h1000 is not known; did you mean 'h100'\?"):
        forecast.device(replace(H100, gpu="h1000"))
    with pytest.raises(ConfigError, match=r"^plan.index=1: this grid has 1 cells, 0 to 0$"):
        plan_status.pick([cell()], 1)


def test_status_counts_cells_and_names_who_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, running, failed, waiting = (cell(decode={"seed": seed}) for seed in range(4))
    Store(done.folder(tmp_path)).folder.mkdir(parents=True)
    Store(done.folder(tmp_path)).mark_done({"method_ids": list(done.method_ids.values())})
    Store(failed.folder(tmp_path)).folder.mkdir(parents=True)
    Store(failed.folder(tmp_path)).mark_failed({"error": "x"})
    with Store(running.folder(tmp_path)).writing():
        plan_status.progress([done, running, failed, waiting], tmp_path)
    lines, facts = printed(capsys)
    assert facts == {"cells": 4, "done": 1, "failed": 1, "running": 1, "waiting": 1}
    assert [line.split("  ")[2] for line in lines] == ["done", "running", "failed", "waiting"]
    assert [line.split("  ")[3] for line in lines] == ["2 of 2 blocks", *["0 of 2 blocks"] * 3]
    assert "pid " in lines[1]


def large_grid(count: int, results: Path) -> list[Cell]:
    """As ``grid`` makes them: few models and sets of questions, shared; the first half is done."""
    questions = tuple(Question(f"q{number}", "toy", ("Why? " * 9, "And?")) for number in range(80))
    first = cell(model=VICUNA, questions=questions, methods={f"m{number}": {"n": number} for number in range(7)})
    cells = [replace(first, decode=replace(first.decode, seed=seed)) for seed in range(count)]
    for one in cells[: count // 2]:
        store = Store(one.folder(results))
        store.folder.mkdir(parents=True)
        (store.folder / "DONE").write_text(json.dumps({"method_ids": list(one.method_ids.values())}))
    return cells


def test_ten_thousand_cells_are_one_small_file_for_each_that_is_done_and_none_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, work = large_grid(400, tmp_path), Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **more: Any) -> Any:
            work[name] += 1
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, wrapper)

    counted(Path, "read_bytes")
    counted(plan, "MissingBlock")
    counted(forecast, "footprint")
    counted(forecast, "pace")
    counted(Store, "sessions")
    cells = [replace(one) for one in cells]
    assert plan_status.price(cells, tmp_path, H100) == 0
    assert printed(capsys)[1]["blocks_to_run"] == 200 * 80
    assert work == {"read_bytes": 200, "footprint": 1, "pace": 3, "sessions": 3}


def test_a_model_on_the_cpu_needs_no_gpu_unless_the_plan_names_one() -> None:
    where = forecast.Device(gpu_specs.named("h100"), 2, 64e9)
    on_cpu, on_gpu = cell(model={"device": "cpu"}), cell(model={"device": "cuda"})
    here = replace(H100, gpu=None)
    assert plan_status._device_of(on_cpu, where, here) == forecast.Device(None, 1, 64e9)
    assert plan_status._device_of(on_gpu, where, here) == plan_status._device_of(on_cpu, where, H100) == where


def test_a_target_over_several_gpus_is_another_machine_than_one_on_a_node_that_has_several() -> None:
    node = {"gpus": [{"name": "H100"}] * 8, "device": "cuda:0"}
    assert hardware.kind({**node, "layers_on": {"cuda:0": 83}}) == "1 x H100"
    assert hardware.kind({**node, "layers_on": {"cuda:0": 42, "cuda:1": 41}}) == "2 x H100"
    assert hardware.kind(node) == "8 x H100", "records from before say no more"
