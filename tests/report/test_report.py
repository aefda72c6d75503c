"""Tables: derived from records alone, the same bytes every time, with a hole wherever a number would not be true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.plan.cells import VANILLA, Question
from bench.records.block import to_record
from bench.records.store import SCHEMA, Store
from bench.report import layout, tables
from bench.report.admissible import MixedHardwareError
from bench.report.estimators import ESTIMATORS, sums
from bench.report.intervals import estimate
from tests.support.commands import ROOT, Command, block, cell, environment, tiny_settings, turn
from tests.support.records import GPU, MACHINE, OURS, PAPER, TABLE, measured, rewritten

THREE = tuple(Question(name, "toy", ("Hello?",)) for name in "abc")


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


def test_rows_of_two_runtimes_stand_side_by_side_and_are_named(tmp_path: Path) -> None:
    cells = [measured(tmp_path, "one"), measured(tmp_path, "one", fast=4.0, model={"runtime": "fused"})]
    report = tables.collect(cells, tmp_path)
    assert list(report.rows["dtype"]) == ["float32", "float32", "float32 fused", "float32 fused"]
    page = layout.markdown(report, "A title", PAPER)
    assert "## tiny, float32, T=0" in page
    assert "## tiny, float32 fused, T=0" in page
    assert "runtime=fused, vanilla's too" in page


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
        f"{part.name}: 1 of 2 blocks to run",
        f"{failed.name}: RuntimeError: out of memory",
        f"{none.name}: 2 of 2 blocks to run",
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


def test_a_baseline_that_fails_its_audit_takes_its_cell_along(tmp_path: Path) -> None:
    bad, good = measured(tmp_path, "bad"), measured(tmp_path, "good")

    def violate(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        blocks[0]["runs"][0]["turns"][0]["gaps"] = [[3, 0.5]]
        return blocks

    rewritten(bad, tmp_path, violate)
    report = tables.collect([bad, good], tmp_path)
    assert set(report.rows["task"]) == {"good"}, "a speedup over a wrong baseline is no speedup"
    (hole,) = report.holes
    assert hole.startswith(f"{bad.name} vanilla: not lossless")
    assert hole.endswith("every speedup of this cell is relative to it")


def test_blocks_made_for_another_method_count_for_nothing(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    before = tables.collect([one], tmp_path)
    store = Store(one.folder(tmp_path))
    store.write_session("elsewhere", {"hardware": GPU})

    def add(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        runs = {VANILLA: [turn([1] * 99, 1.0, gaps=[(0, 9.0)])], "later": [turn([1], 1.0)]}
        return [*blocks, {"schema": SCHEMA, **to_record(block("a", runs, session="elsewhere"))}]

    rewritten(one, tmp_path, add)
    after = tables.collect([one], tmp_path)
    pd.testing.assert_frame_equal(before.rows, after.rows)
    assert (after.holes, after.machine) == ([], before.machine)


def test_a_heading_says_how_it_was_decoded_whatever_the_config_is_called(tmp_path: Path) -> None:
    one = measured(tmp_path, "one", decode={"temperature": 0.7, "top_p": 0.9})
    assert one.decode.name == "greedy"
    report = tables.collect([one], tmp_path)
    assert set(report.rows["decode"]) == {"T=0.7, top_p=0.9"}
    assert "## tiny, float32, T=0.7, top_p=0.9" in layout.markdown(report, "A title", PAPER)


def test_our_estimators_and_the_paper_s_are_a_switch_apart_and_both_in_the_csv(tmp_path: Path) -> None:
    report = tables.collect([measured(tmp_path, "one")], tmp_path)
    paper, ours = (layout.markdown(report, "A title", style) for style in (PAPER, OURS))
    assert "one speedup_paper" in paper
    assert "one tau_paper" in paper
    assert "one speedup_geomean" in ours
    assert "one tau_micro" in ours
    assert set(ESTIMATORS) <= set(report.rows.columns)


def test_a_table_with_a_hole_is_written_under_another_name(tmp_path: Path) -> None:
    cells = [measured(tmp_path, "one"), measured(tmp_path, "two")]
    whole = layout.write(tables.collect(cells, tmp_path), TABLE, tmp_path, PAPER)
    before = [path.read_bytes() for path in whole]
    (cells[1].folder(tmp_path) / "DONE").unlink()
    (cells[1].folder(tmp_path) / "blocks.jsonl").unlink()
    part = layout.write(tables.collect(cells, tmp_path), TABLE, tmp_path, PAPER)
    assert {path.stem for path in part} == {"toy-partial"}
    assert [path.read_bytes() for path in whole] == before


def test_printed_values_stand_beside_ours_with_a_mark_where_they_differ(tmp_path: Path) -> None:
    methods = {"eagle2": {}, "pld": {"max_ngram": 3}}
    model, task = {"name": "vicuna7b"}, "mt_bench"
    made = cell(task={"name": task}, model=model, methods=methods, questions=THREE)
    store = Store(made.folder(tmp_path))
    with store.writing():
        store.write_session("s", {"hardware": MACHINE})
        for number, question in enumerate(made.questions):
            speed = 3.5 + 0.12 * number  # around the printed 3.62 of EAGLE-2, far from PLD's 1.61
            ours = [turn([1, 4, 4], 9 / speed, gaps=[])]
            runs = {VANILLA: [turn([1] * 9, 9.0, gaps=[])], "eagle2": ours, "pld": ours}
            store.append_block(block(question.id, runs, ids=made.method_ids, session="s"))
        store.mark_done({"method_ids": list(made.method_ids.values())})
    report = tables.collect([made], tmp_path, "table1")
    rows = report.rows.set_index("method")
    assert rows.loc["eagle2", "speedup_paper_published"] == 3.62
    assert bool(rows.loc["eagle2", "speedup_paper_agrees"])
    assert not bool(rows.loc["pld", "speedup_paper_agrees"])
    assert rows.loc["eagle2", "speedup_paper_confidence"] == "high"
    assert rows.loc["vanilla", "speedup_paper_source"] == tables.NEW
    page = layout.markdown(report, "A title", PAPER)
    shown = f"3.62x [{rows.loc['pld', 'speedup_paper_low']:.2f}, {rows.loc['pld', 'speedup_paper_high']:.2f}]"
    assert f"{shown} (3.62)" in page
    assert f"{shown} (1.61 ≠)" in page
    assert "(new)" in page
    assert r"(1.61 $\neq$)" in layout.latex(report, "A title", PAPER)
    printed = report.printed.set_index(["temperature", "model", "method"])
    assert "V 7B" not in printed.index.get_level_values("model")
    assert printed.loc[(0, "V 13B", "EAGLE-2"), "MT-bench"] == "4.26x / 4.83"


@pytest.mark.parametrize(
    ("decode", "published"),
    [({}, True), ({"temperature": 0.5}, False), ({"top_p": 0.9}, False), ({"top_k": 5}, False)],
    ids=["greedy", "another temperature", "top-p", "top-k"],
)
def test_a_printed_value_is_of_the_same_decoding(tmp_path: Path, decode: dict[str, Any], published: bool) -> None:
    made = measured(tmp_path, "mt_bench", model={"name": "vicuna7b"}, decode=decode)
    rows = tables.collect([made], tmp_path, "table1").rows.set_index("method")
    assert pd.notna(rows.loc["pld", "speedup_paper_published"]) == published
    assert (rows.loc["pld", "speedup_paper_source"] == tables.NEW) != published
    assert "temperature" not in rows.columns, "the decode column says it"


def test_a_rule_parts_the_decodings_of_a_latex_table(tmp_path: Path) -> None:
    decodes: list[dict[str, Any]] = [{}, {"name": "t1", "temperature": 1.0}, {"name": "half", "temperature": 0.5}]
    cells = [measured(tmp_path, "one", decode=decode) for decode in decodes]
    _, _, body = layout.latex(tables.collect(cells, tmp_path), "A title", PAPER).partition("\\midrule\n")
    parts = body.partition("\\bottomrule")[0].split("\\midrule\n")
    assert [part.split(" & ")[0] for part in parts] == ["T=0", "T=1", "T=0.5"]
    assert [part.count("\\\\\n") for part in parts] == [2, 2, 2]


def test_a_question_without_a_second_cycle_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")

    def shorten(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        blocks[0]["runs"][1]["turns"][0] |= {"emitted": [1, 8], "end_ns": [2 * 10**9]}
        return blocks

    rewritten(one, tmp_path, shorten)
    report = tables.collect([one], tmp_path)
    row = report.rows.set_index("method").loc["pld"]
    assert (row["tau_paper_without"], row["tau_question_without"]) == (1, 0)
    assert "tau_paper of pld on one, T=0: without 1 of 2 questions" in layout.markdown(report, "A title", PAPER)


def test_variants_of_a_method_are_rows_of_their_own_in_the_order_given(tmp_path: Path) -> None:
    variants = {"pld longer": {"max_ngram": 5}, "pld": {"max_ngram": 3}, "vanilla A/A": {}}
    made = cell(task={"name": "one"}, methods=variants)
    assert len({*made.method_ids.values(), VANILLA}) == 4
    store = Store(made.folder(tmp_path))
    with store.writing():
        store.write_session("s", {"hardware": MACHINE})
        for question in made.questions:
            runs = {name: [turn([1] * 9, 9.0, gaps=[])] for name in (VANILLA, *variants)}
            store.append_block(block(question.id, runs, ids=made.method_ids, session="s"))
        store.mark_done({"method_ids": list(made.method_ids.values())})
    page = layout.markdown(tables.collect([made], tmp_path), "A title", PAPER)
    first = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    assert first[2:6] == ["vanilla", "vanilla A/A", "pld longer", "pld"]


def test_a_cell_none_of_whose_methods_has_weights_is_a_hole_and_is_not_run(tmp_path: Path) -> None:
    one = replace(cell(methods={}), without_weights=("eagle2",))
    assert one.idle
    assert not cell(methods={}).idle, "vanilla by itself was asked for"
    assert tables.collect([one], tmp_path).holes == [f"{one.name}: no weights for eagle2"]


def test_no_table_mixes_machines(tmp_path: Path) -> None:
    two = [measured(tmp_path, "one"), measured(tmp_path, "two", hardware=GPU)]
    with pytest.raises(MixedHardwareError, match=r"1 x H200; A CPU, 2 cores"):
        tables.collect(two, tmp_path)
    assert tables.collect(two[1:], tmp_path).machine == "1 x H200"


def test_a_session_that_measured_nothing_does_not_count_as_a_machine(tmp_path: Path) -> None:
    one = measured(tmp_path, "one", hardware=GPU)
    Store(one.folder(tmp_path)).write_session("failed before its first block", {"hardware": MACHINE})
    assert tables.collect([one], tmp_path).machine == "1 x H200"


def test_the_files_of_a_table_say_the_same_and_are_the_same_every_time(tmp_path: Path) -> None:
    cells = [measured(tmp_path, name, questions=THREE) for name in ("one", "two")]
    report = tables.collect(cells, tmp_path)
    paths = layout.write(report, TABLE, tmp_path, PAPER)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"tables/toy.{suffix}" for suffix in ("md", "csv", "tex", "parquet", "json")
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
            assert re.search(rf"{row[name]:.2f}{unit}\*? \[{low:.2f}, {high:.2f}\]", text), (
                "* marks an unstable speedup"
            )
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
    assert set(files) == {f"table1-partial.{suffix}" for suffix in ("md", "csv", "tex", "parquet", "json")}
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


def test_a_laptop_redraws_what_another_profile_measured(
    small_table: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``profile=auto`` is paper on a machine with a GPU; its records are found where there is none, and vice versa."""
    assert command(*small_table).code == 0
    automatic = [argument for argument in small_table if not argument.startswith("profile=")]
    for has_gpu in (True, False):
        monkeypatch.setattr("bench.records.hardware.has_gpu", lambda has_gpu=has_gpu: has_gpu)
        monkeypatch.setattr("bench.records.hardware.has_fast_bfloat16", lambda: True)
        result = command(*automatic, module="bench.report")
        assert result.code == 0, result.err
        assert "profile embedded: 4 of 4 cells" in result.err


def test_two_methods_are_compared_on_their_questions(small_table: list[str], command: Command) -> None:
    assert command(*small_table).code == 0
    result = command(*small_table, "compare=[pld,lookahead]", module="bench.report")
    assert result.code == 0, result.err
    assert result.out.count("2 questions cannot show a difference") == 2 * 2 * 2
    assert "| all " in result.out
    result = command(*small_table, "compare=[pld,medusa]", module="bench.report")
    assert result.code == 2
    assert "compare names 'medusa', which is not in these cells" in result.err


def test_a_report_before_the_run_is_a_page_of_holes_and_exits_1(small_table: list[str], command: Command) -> None:
    result = command(*small_table, module="bench.report")
    assert result.code == 1
    assert len(result.last_line["holes"]) == 4
    assert all(hole.endswith(": 2 of 2 blocks to run") for hole in result.last_line["holes"])


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
