"""Conditions of a GPU: what disturbs a block, that it is set aside whole and measured again, and its energy.

The readings here are hand-made, since no test may wait for a GPU to overheat; the session that meets them is real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import gpu_state
from bench.measure.clock import Stopwatch, now_ns
from bench.measure.gpu_state import disturbances, named
from bench.measure.session import Session
from bench.plan.cells import Cell, Question
from bench.plan.schema import Style
from bench.records.block import Reading, Readings, Turn, turns_of
from bench.records.store import Store
from bench.report import layout, tables
from tests.support.commands import cell, turn

QUIET = Reading(1980, 1980, 55, 310.5, (), 0, 1_000_000)
HOT = replace(QUIET, temperature_c=88, reasons=("sw_thermal_slowdown",))
SHARED = replace(QUIET, foreign=1)


def at(clock_mhz: int | None, *reasons: str) -> Reading:
    return replace(QUIET, clock_mhz=clock_mhz, reasons=reasons)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], []),
        ([QUIET, QUIET], []),
        ([QUIET, HOT], ["sw_thermal_slowdown"]),
        ([HOT, QUIET], ["sw_thermal_slowdown"]),
        ([at(1980, "hw_power_brake", "hw_slowdown")], ["hw_power_brake", "hw_slowdown"]),
        ([QUIET, SHARED], ["another process on the GPU"]),
        ([at(1980), at(1484)], ["clock fell below 75%"]),
        ([at(1980), at(1486)], []),
        ([at(1980), at(1600), at(1300)], ["clock fell below 75%"]),
        ([at(600), at(1980)], []),
        ([at(1980), at(210, "idle"), at(1980)], []),
        ([at(1980, "power_cap"), at(1900, "power_cap")], []),
        ([at(1980), at(1200, "power_cap")], ["clock fell below 75%"]),
        ([at(1200, "clock_setting"), at(1200, "clock_setting")], []),
        ([Reading(None, None, None, None, (), None, None)] * 2, []),
    ],
    ids=[
        "none", "quiet", "hot after", "hot before", "hardware", "shared", "falls", "wavers", "sinks", "rises from idle",
        "idle", "at its limit", "pulled down by its limit", "chosen clock", "tells nothing",
    ],
)  # fmt: skip
def test_what_disturbs_a_block(readings: Sequence[Reading], expected: list[str]) -> None:
    assert disturbances(readings) == expected


def test_reasons_have_names_and_an_unknown_one_keeps_its_value() -> None:
    assert named(0) == ()
    assert named(0x1 | 0x4 | 0x80) == ("idle", "power_cap", "hw_power_brake")
    assert named(0x20 | 0x4000) == ("sw_thermal_slowdown", "0x4000")


def test_energy_is_the_sum_of_the_counters_differences_or_none() -> None:
    def measured(*counters: tuple[int | None, int | None]) -> Turn:
        ends = ([replace(QUIET, energy_mj=value) for value in column] for column in zip(*counters, strict=True))
        return turn([1], gpus=Readings(*ends))

    assert measured((1_000, 3_500)).joules == 2.5
    assert measured((1_000, 3_500), (7, 507)).joules == 3.0
    assert turn([1]).joules is None
    for unknown in ((None, 3_500), (1_000, None), (3_500, 0)):
        assert measured(unknown, (7, 507)).joules is None, "half of the GPUs is no total"


def test_without_a_driver_there_is_no_reading_and_no_error() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        pytest.skip("a driver is here: tests/test_gpu.py asks it")
    except pynvml.NVMLError_LibraryNotFound:
        pass
    ident = "9a1c9b0e-3c55-4a73-a8a4-6b1d0f6d7e11"
    assert gpu_state.reading(ident) is None
    assert gpu_state.reader([ident])() == []
    assert gpu_state.reader([])() == []


class Recorded:
    """Gives a session recorded readings in place of NVML's, block by block; a block of two methods reads four times."""

    def __init__(self, *blocks: Reading) -> None:
        self._blocks = list(blocks)
        self.reads = 0

    def __call__(self, uuids: Sequence[str]) -> Callable[[], list[Reading]]:
        assert uuids == [], "no GPU is here"
        return self._read

    def _read(self) -> list[Reading]:
        self.reads += 1
        now = self._blocks[(self.reads - 1) // 4]
        return [replace(now, energy_mj=1_000_000 + 7_000 * self.reads)]


@pytest.fixture
def made(tiny_model_folder: Path) -> Cell:
    return cell(
        model={"kind": "folder", "id": str(tiny_model_folder), "revision": None, "device": "cpu"},
        measure={"warmup_tokens": 2},
        decode={"max_new_tokens": 12},
        questions=tuple(Question(name, "toy", (f"{name}?",)) for name in ("who", "what", "why")),
    )


def asked(store: Store) -> list[tuple[str, int]]:
    return [(block.question_id, block.attempt) for block in store.blocks()]


def test_a_disturbed_block_is_measured_again_after_the_others_with_all_its_methods(made: Cell, tmp_path: Path) -> None:
    recorded = Recorded(QUIET, HOT, QUIET, SHARED, QUIET)
    assert Session(recorded).run([made], tmp_path) == []
    assert recorded.reads == 5 * 4
    store = Store(made.folder(tmp_path))
    assert store.done() is not None
    assert asked(store) == [("who", 1), ("why", 1), ("what", 3)]
    assert all(block.disturbed == [] for block in store.blocks())
    assert [(one.question_id, one.attempt, one.disturbed) for one in store.disturbed()] == [
        ("what", 1, ["sw_thermal_slowdown"]),
        ("what", 2, ["another process on the GPU"]),
    ]
    for block in [*store.blocks(), *store.disturbed()]:
        assert sorted(run.method for run in block.runs) == ["pld", "vanilla"]
        assert len({str(run.turns[0].output_ids) for run in block.runs}) == 1
    report = tables.collect([made], tmp_path)
    assert report.holes == []
    assert "tiny, float32, T=0, toy: 1 of the blocks were measured again, " in layout.caption(report, Style("ours"))


def test_a_block_disturbed_at_every_attempt_is_a_hole_until_the_same_command_runs_on_a_quiet_gpu(
    made: Cell, tmp_path: Path
) -> None:
    assert Session(Recorded(QUIET, HOT, QUIET, HOT, HOT)).run([made], tmp_path) == [made.name]
    store = Store(made.folder(tmp_path))
    assert store.done() is None
    assert asked(store) == [("who", 1), ("why", 1)]
    assert len(store.disturbed()) == 3
    report = tables.collect([made], tmp_path)
    assert report.rows.empty, "two questions of three are no cell"
    (hole,) = report.holes
    assert "1 blocks invalid, disturbed 3 times each (sw_thermal_slowdown); the same command tries them again" in hole

    again = Recorded(QUIET)
    assert Session(again).run([made], tmp_path) == []
    assert again.reads == 4, "what was measured stays"
    assert asked(store) == [("who", 1), ("why", 1), ("what", 4)], "the tries of the first run count"
    assert tables.collect([made], tmp_path).holes == []


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_block_in_which_a_shape_was_recorded_is_measured_again(
    made: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("decode.target", "loading.model"):
        monkeypatch.setattr(f"methods.{module}.refuse_without_gpu", lambda device: None)
    graph = replace(made, model=replace(made.model, runtime="graph"), measure=replace(made.measure, warmup_tokens=0))
    assert Session().run([graph], tmp_path) == []
    store = Store(graph.folder(tmp_path))
    assert ("who", 2) in asked(store), "the first block meets every shape first"
    assert store.done() is not None
    assert {why for one in store.disturbed() for why in one.disturbed} == {"shapes were recorded as CUDA graphs"}


def test_each_turn_keeps_its_readings_and_a_row_says_joules_per_token(made: Cell, tmp_path: Path) -> None:
    assert Session(Recorded(QUIET, QUIET, QUIET)).run([made], tmp_path) == []
    blocks = Store(made.folder(tmp_path)).blocks()
    tokens = sum(one.tokens for one in turns_of(blocks, made.method_ids["pld"]))
    gpus = blocks[0].runs[0].turns[0].gpus
    assert gpus
    assert [gpus.before[0].energy_mj, gpus.after[0].energy_mj] == [1_007_000, 1_014_000]
    assert (gpus.after[0].power_w, gpus.after[0].reasons, gpus.after[0].foreign) == (310.5, (), 0)
    report = tables.collect([made], tmp_path)
    row = report.rows.set_index("method").loc["pld"]
    assert row["joules_per_token"] == 3 * 7.0 / tokens
    assert "joules_per_token" in layout.markdown(report, "toy", Style("ours"))
    timed = blocks[0].runs[0].turns
    assert tables._joules_per_token([replace(timed[0], gpus=None), *timed]) is None, "no partial total"


def test_without_readings_nothing_is_disturbed_and_there_is_no_energy(made: Cell, tmp_path: Path) -> None:
    assert Session().run([made], tmp_path) == []
    store = Store(made.folder(tmp_path))
    assert not any(one.gpus for block in store.blocks() for run in block.runs for one in run.turns)
    assert store.disturbed() == []
    report = tables.collect([made], tmp_path)
    assert report.rows["joules_per_token"].isna().all()
    assert "joules_per_token" not in layout.markdown(report, "toy", Style("ours"))


class HostEvent:
    """An event in the queue of a device that is never behind: the host itself."""

    def __init__(self) -> None:
        self.at = now_ns()

    def elapsed_time(self, end: HostEvent, /) -> float:
        return (end.at - self.at) / 1e6


def test_phases_by_events_fill_the_turn_and_wait_for_the_device_once_at_its_end() -> None:
    syncs: list[int] = []
    marks: list[HostEvent] = []

    def mark() -> HostEvent:
        marks.append(HostEvent())
        return marks[-1]

    watch = Stopwatch(lambda: syncs.append(len(marks)), mark)
    watch.start()
    for name in ("prefill", "draft", "verify", "draft", "verify"):
        sum(range(2_000))
        watch.phase(name)
    watch.step()
    phases = dict(watch.phases_ns())
    assert syncs == [0, 6]
    assert list(phases) == ["prefill", "draft", "verify"]
    assert phases["draft"] == marks[2].at - marks[1].at + marks[4].at - marks[3].at
    assert sum(phases.values()) == marks[5].at - marks[0].at <= watch.step_ends_ns[-1] + 1_000_000
    assert watch.phases_ns() == phases, "read twice, counted once"


def test_on_a_gpu_without_events_phases_are_not_timed() -> None:
    watch = Stopwatch(lambda: None)
    watch.start()
    watch.phase("prefill")
    assert watch.phases_ns() == {}
