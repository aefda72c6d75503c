"""What only a GPU can show: NVML's answers, phases by CUDA events, and that timing them costs no sync."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import methods
from bench.measure import gpu_state, gpus
from bench.measure.session import Session
from bench.plan.cells import Question
from bench.records.store import Store
from methods.base import Request
from methods.decode.loop import decode
from methods.decode.target import Target
from tests.support.commands import cell
from tests.support.models import tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def target() -> Target:
    return Target(tiny_llama(torch.float32).cuda())


def test_nvml_reads_the_gpu_that_torch_runs_on(target: Target) -> None:
    pynvml = pytest.importorskip("pynvml")
    (ident,) = gpus.uuids(gpus.gpus(target))
    assert gpu_state.reading("00000000-0000-0000-0000-000000000000") is None
    before = gpu_state.reading(ident)
    assert before is not None
    _, handle = gpu_state._handle(ident) or (None, None)
    name = pynvml.nvmlDeviceGetName(handle)
    assert torch.cuda.get_device_name(target.device) == (name if isinstance(name, str) else name.decode())
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        a @ a
        torch.cuda.synchronize()
    after = gpu_state.reading(ident)
    assert after is not None
    print(f"\n{name}: {before}\n -> {after}")
    assert 0 < (after.clock_mhz or 0) <= (after.max_clock_mhz or 0)
    assert 0 < (after.temperature_c or 0) < 110
    assert (after.power_w or 0) > 5
    assert after.foreign == 0, "another process computes here: no timing of this machine counts"
    if before.energy_mj is not None and after.energy_mj is not None:  # boards before Volta have no counter
        assert 5_000 < after.energy_mj - before.energy_mj < 5_000_000, "a second of work, in millijoules"


def test_a_session_on_a_gpu_records_phases_readings_and_energy(tiny_model_folder: Path, tmp_path: Path) -> None:
    made = cell(
        model={"kind": "folder", "id": str(tiny_model_folder), "revision": None, "device": "cuda"},
        questions=tuple(Question(name, "toy", (f"{name}?",)) for name in ("who", "what")),
    )
    assert Session().run([made], tmp_path) == []
    turns = [turn for block in Store(made.folder(tmp_path)).blocks() for run in block.runs for turn in run.turns]
    for turn in turns:
        cycled = {"draft", "verify", "accept", "commit"} if turn.cycles else set()
        assert set(turn.phases_ns) == {"prefill"} | cycled
        # The device's clock and the host's: equal but for what the host does before its first and after its last call.
        assert sum(turn.phases_ns.values()) == pytest.approx(turn.end_ns[-1], rel=0.1)
        assert turn.gpus
        assert len(turn.gpus.before) == len(turn.gpus.after) == 1


@pytest.mark.parametrize("name", ["vanilla", "pld"])
def test_timing_the_phases_costs_no_sync(name: str, target: Target) -> None:
    drafter = methods.load(name, {}, target)
    request = Request(tuple(range(1, 30)), 24)

    def syncs(probe: Callable[[str], None] | None) -> int:
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # warns once of itself, then of every sync
            try:
                steps = len(list(decode(target, drafter, request, *([probe] if probe else []))))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        print(f"\n{name}: {len(seen)} syncs in {steps} steps")
        return len(seen)

    syncs(None)  # the first decode also syncs for what is set up once
    plain = syncs(None)
    assert plain > 0, "every step brings its tokens to the host"
    assert syncs(gpus.stopwatch(gpus.gpus(target)).phase) == plain
