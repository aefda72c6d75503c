"""Tables: derived from records alone, the same bytes every time, with a hole wherever a number would not be true."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bench_support import ROOT, Command, block, cell, environment, tiny_settings, turn

from bench import layout, tables
from bench.config import Style, Table
from bench.evidence import MixedHardwareError
from bench.plan import VANILLA, Cell
from bench.records import Store
from bench.stats import ESTIMATORS, estimate, sums

TABLE = Table("toy", "A title", "all", ["one", "two"], ["greedy"])
PAPER, OURS = Style("paper"), Style("ours")
MACHINE = {"cpu": "A CPU", "cores": 2, "gpus": []}
GPU = {"cpu": "A CPU", "cores": 8, "gpus": [{"name": "H200"}]}


def measured(results: Path, task: str, fast: float = 2.0, hardware: dict[str, Any] = MACHINE, **changes: Any) -> Cell:
    """A finished cell of two questions; pld is ``fast`` times as fast as vanilla, and 1.5 times that on the second."""
    made = cell(task={"name": task}, **changes)
    store = Store(made.folder(results))
    with store.writing():
        store.write_session("s", {"hardware": hardware})
        for number, question in enumerate(made.questions):
            ours = turn([1, 4, 4], 9 / fast / (1 + number / 2), gaps=[])
            runs = {VANILLA: [turn([1] * 9, 9.0, gaps=[])], "pld": [ours]}
            record = block(question.id, runs)
            for run in record["runs"]:
                run["method_id"] = made.method_ids.get(run["method"], VANILLA)
            store.append_block({**record, "session": "s"})
        store.mark_done({"method_ids": list(made.method_ids.values())})
    return made


def test_a_row_holds_each_estimator_by_name_and_what_it_rests_on(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    report = tables.collect([one], tmp_path)
    assert report.holes == []
    assert report.machine == "A CPU, 2 cores"
    assert list(report.rows["method"]) == ["vanilla", "pld"]
    pld = report.rows.set_index("method").loc["pld"]
    data = sums(Store(one.folder(tmp_path)).blocks(), one.method_ids["pld"])
    for name in ESTIMATORS:
        expected = estimate(name, data)
        assert (pld[name], pld[f"{name}_low"], pld[f"{name}_high"]) == (expected.value, expected.low, expected.high)
    assert pld["speedup_geomean"] == pytest.approx((2 * 3) ** 0.5)
    assert (pld["questions"], pld["turns"], pld["cycles"], pld["lossless"]) == (2, 2, 4, "identical 2/2")
    assert not {"speedup", "tau"} & set(report.rows.columns), "no estimator without a name"


def test_the_mean_is_over_all_tasks_or_there_is_none(tmp_path: Path) -> None:
    both = [measured(tmp_path, "one"), measured(tmp_path, "two", fast=4.0)]
    rows = tables.collect(both, tmp_path).rows
    means = rows[rows["task"] == "mean"].set_index("method")
    single = rows[rows["task"] != "mean"].set_index(["method", "task"])
    expected = (single.loc[("pld", "one"), "tau_micro"] + single.loc[("pld", "two"), "tau_micro"]) / 2
    assert means.loc["pld", "tau_micro"] == expected
    # Each task's geometric mean first: of 2 and 3, and of 4 and 6; then their plain average.
    assert means.loc["pld", "speedup_geomean"] == pytest.approx((6**0.5 + 24**0.5) / 2)
    (both[1].folder(tmp_path) / "DONE").unlink()
    (both[1].folder(tmp_path) / "blocks.jsonl").unlink()
    rows = tables.collect(both, tmp_path).rows
    assert list(rows["task"]) == ["one", "one"]


def test_a_cell_that_is_not_whole_is_a_hole_with_its_reason(tmp_path: Path) -> None:
    done, part, failed, none = (measured(tmp_path, name) for name in ("done", "part", "failed", "none"))
    for one in (part, failed):
        folder = one.folder(tmp_path)
        (folder / "DONE").unlink()
        lines = (folder / "blocks.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "blocks.jsonl").write_bytes(lines[0])
    Store(failed.folder(tmp_path)).mark_failed({"error": "RuntimeError: out of memory"})
    none = replace(none, methods={"pld": {"max_ngram": 9}})
    report = tables.collect([done, part, failed, none], tmp_path)
    assert report.holes == [
        f"{part.name}: 1 of 2 questions to run",
        f"{failed.name}: RuntimeError: out of memory",
        f"{none.name}: 2 of 2 questions to run",
    ]
    assert set(report.rows["task"]) == {"done"}
    page = layout.markdown(report, "A title", PAPER)
    assert all(f"- {hole}" in page for hole in report.holes)


def test_a_violation_is_a_hole_and_the_other_methods_stay(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    path = one.folder(tmp_path) / "blocks.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    second["runs"][1]["turns"][0] |= {"gaps": [[3, 0.5]]}
    path.write_text("".join(json.dumps(each) + "\n" for each in (first, second)))
    report = tables.collect([one], tmp_path)
    assert list(report.rows["method"]) == ["vanilla"]
    (hole,) = report.holes
    assert hole == f"{one.name} pld: not lossless (identical 1/2, VIOLATION 1, largest gap 0.5)"


def test_a_method_without_weights_has_a_place_in_the_table_and_no_number(tmp_path: Path) -> None:
    cells = [replace(measured(tmp_path, name), without_weights=("eagle2",)) for name in ("one", "two")]
    report = tables.collect(cells, tmp_path)
    assert report.holes == []
    lacking = report.rows[report.rows["method"] == "eagle2"]
    assert list(lacking["task"]) == ["one", "two"]
    assert lacking[list(ESTIMATORS)].isna().all(axis=None)
    page = layout.markdown(report, "A title", PAPER)
    (line,) = [line for line in page.splitlines() if line.startswith("| eagle2")]
    assert [text.strip() for text in line.split("|")][2:6] == ["no weights"] * 4
    for path in layout.write(report, TABLE, tmp_path, PAPER):
        assert path.stat().st_size


def test_no_table_mixes_machines(tmp_path: Path) -> None:
    two = [measured(tmp_path, "one"), measured(tmp_path, "two", hardware=GPU)]
    with pytest.raises(MixedHardwareError, match=r"1 x H200; A CPU, 2 cores"):
        tables.collect(two, tmp_path)
    assert tables.collect(two[1:], tmp_path).machine == "1 x H200"


def test_a_session_that_measured_nothing_does_not_count_as_a_machine(tmp_path: Path) -> None:
    one = measured(tmp_path, "one", hardware=GPU)
    Store(one.folder(tmp_path)).write_session("failed before its first block", {"hardware": MACHINE})
    assert tables.collect([one], tmp_path).machine == "1 x H200"


def test_the_four_files_say_the_same_and_are_the_same_every_time(tmp_path: Path) -> None:
    cells = [measured(tmp_path, "one"), measured(tmp_path, "two")]
    report = tables.collect(cells, tmp_path)
    paths = layout.write(report, TABLE, tmp_path, PAPER)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"tables/toy.{suffix}" for suffix in ("md", "csv", "tex", "parquet")
    ]
    before = [path.read_bytes() for path in paths]
    layout.write(tables.collect(cells, tmp_path), TABLE, tmp_path, PAPER)
    assert [path.read_bytes() for path in paths] == before

    from_csv, from_parquet = pd.read_csv(paths[1]), pd.read_parquet(paths[3])
    same, *others = (frame.astype(object).where(frame.notna(), None) for frame in (report.rows, from_csv, from_parquet))
    for other in others:
        pd.testing.assert_frame_equal(same, other, check_dtype=False)
    page, tex = paths[0].read_text(), paths[2].read_text()
    row = from_csv.set_index(["method", "task"]).loc[("pld", "one")]
    for name, unit in (("speedup_paper", "x"), ("tau_paper", "")):
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        for text in (page, tex):
            assert f"{row[name]:.2f}{unit} [{low:.2f}, {high:.2f}]" in text
    assert page.startswith("# A title\n")
    assert "Machine: A CPU, 2 cores." in page
    assert "pld: max_ngram=3." in page
    assert r"\toprule" in tex
    assert tex.count("_") == tex.count(r"\_"), "LaTeX takes a bare underscore for mathematics"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


@pytest.fixture
def small_table(tiny_model_folder: Path, tmp_path: Path) -> list[str]:
    narrow = ["table=table1", "task=[gsm8k,nq]", "method=[pld,lookahead]", "task.count=2", "decode.max_new_tokens=8"]
    return [*narrow, *tiny_settings(tiny_model_folder, tmp_path)]


def test_a_table_is_run_written_and_redrawn_byte_for_byte_without_torch(
    small_table: list[str], command: Command, tmp_path: Path
) -> None:
    result = command(*small_table)
    assert result.code == 0, result.err
    assert result.last_line["cells"] == 4
    files = {path.name: path for path in (tmp_path / "tables").iterdir()}
    # The command names tasks and methods, so this is not the whole of Table 1 and must not take its place.
    assert set(files) == {f"table1-partial.{suffix}" for suffix in ("md", "csv", "tex", "parquet")}
    rows = pd.read_csv(files["table1-partial.csv"])
    assert len(rows) == 2 * 3 * (2 + 1), "decodings x methods x (tasks and their mean)"
    assert set(rows["lossless"].dropna()) == {"identical 2/2"}
    assert (rows[rows["method"] == "vanilla"]["speedup_geomean"] == 1.0).all()
    before = {name: path.read_bytes() for name, path in files.items()}
    for path in files.values():
        path.unlink()

    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None  # an import of either now raises\n"
        f"sys.argv = ['bench.report', *{small_table!r}]\n"
        "import runpy\n"
        "runpy.run_module('bench.report', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert {name: path.read_bytes() for name, path in files.items()} == before
    assert done.stdout == result.out


def test_a_report_before_the_run_is_a_page_of_holes_and_exits_1(small_table: list[str], command: Command) -> None:
    result = command(*small_table, module="bench.report")
    assert result.code == 1
    assert len(result.last_line["holes"]) == 4
    assert all(hole.endswith(": 2 of 2 questions to run") for hole in result.last_line["holes"])


def test_records_of_two_machines_are_refused_in_one_line(
    small_table: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed(*_: Any) -> None:
        raise MixedHardwareError("records of different machines cannot share a table: A; B")

    monkeypatch.setattr(tables, "collect", mixed)
    try:
        result = command(*small_table, module="bench.report")
    except MixedHardwareError:
        pytest.fail("a traceback reached the user")
    assert result.code in (1, 2)
    assert "records of different machines cannot share a table: A; B" in result.err
