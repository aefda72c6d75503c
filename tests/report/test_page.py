"""The page as a file: the same bytes every time, without torch, and true to the records it was made from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.records.store import DamagedRecordError, Store
from bench.report import page
from bench.report.page import cells, sheets
from tests.support.commands import ROOT, Command, environment, tiny_settings
from tests.support.page import ATTACK, measure


@pytest.fixture(scope="module")
def measured(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(tiny_model_folder, tmp_path_factory.mktemp("results"), trace=1)


@pytest.fixture
def results(measured: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    for path in measured.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(measured)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path


def embedded(results: Path) -> list[dict[str, Any]]:
    """What the viewer reads."""
    found = re.search(r'<script type="application/json" id="traces">(.*?)</script>', page.render(results), re.S)
    assert found
    traces: list[dict[str, Any]] = json.loads(found.group(1))
    return traces


def only_store(results: Path) -> Store:
    (folder,) = (results / "runs").iterdir()
    return Store(folder)


def test_it_is_written_byte_for_byte_again_without_torch(results: Path) -> None:
    path = page.write(results)
    first = path.read_bytes()
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None  # an import of either now raises\n"
        "from pathlib import Path\n"
        "from bench.report import page\n"
        f"page.write(Path({str(results)!r}))\n"
    )
    path.unlink()
    environ = {**environment(), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environ)
    assert path.read_bytes() == first


def test_the_report_command_writes_it_even_when_the_table_has_holes(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capfd)
    settings = tiny_settings(tiny_model_folder, tmp_path)
    result = command("table=table1", "task=nq", "method=pld", *settings, module="bench.report")
    assert result.code == 1
    assert len(result.last_line["holes"]) == 2
    assert f"wrote {tmp_path / 'report.html'}" in result.err
    assert "Nothing was measured" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_asks_for_nothing_and_its_policy_allows_nothing_but_its_own(results: Path) -> None:
    text = page.render(results)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    directives = {part.split()[0]: part.split()[1:] for part in policy.replace("&#39;", "'").split(";")}
    assert directives["default-src"] == directives["form-action"] == directives["base-uri"] == ["'none'"]
    assert directives["img-src"] == ["data:"]
    assert len(directives["script-src"]) == 3
    assert all(source.startswith("'sha256-") for source in directives["script-src"] + directives["style-src"])
    outside = re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|@import|url\(', text)
    assert outside == []
    assert ATTACK not in text


def test_the_viewer_s_data_are_the_traces_with_rounded_scores(results: Path) -> None:
    recorded = only_store(results).traces()
    shown = embedded(results)
    assert [trace["method"] for trace in shown] == ["lookahead", "eagle2"]
    assert all(trace["repeats"] for trace in shown)
    for ours, theirs in zip(shown, recorded, strict=True):
        for mine, turn in zip(ours["turns"], theirs["turns"], strict=True):
            assert (mine["question"], mine["labels"]) == (turn["question"], turn["labels"])
            for step, raw in zip(mine["steps"], turn["steps"], strict=True):
                assert {**step, "scores": None} == {**raw, "scores": None}
                assert step["scores"] == (raw["scores"] and pytest.approx(raw["scores"], abs=1e-5))


def test_a_trace_of_other_tokens_than_the_timed_ones_is_marked(results: Path) -> None:
    path = only_store(results).folder / "traces.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    first["turns"][0]["steps"][1]["tokens"][0] += 1
    path.write_text("".join(json.dumps(trace) + "\n" for trace in (first, second)))
    assert [trace["repeats"] for trace in embedded(results)] == [False, True]


def test_the_table_holds_the_numbers_of_the_csv_and_the_words_of_the_json(results: Path) -> None:
    (sheet,) = sheets.table_sheets(results)
    assert (sheet.name, sheet.title) == ("toy", ATTACK)
    assert any(line.startswith("Machine: ") for line in sheet.caption)
    (grid,) = sheet.grids
    assert (grid.tasks, grid.estimators) == (["toy"], ["speedup_geomean", "tau_micro"])
    assert [name for name, _ in grid.rows] == ["vanilla", "lookahead", "eagle2"]
    csv = (results / "tables" / "toy.csv").read_text().splitlines()
    assert len(sheet.rows) == len(csv) - 1
    assert not [name for name in sheet.columns if name.endswith(("_low", "_high"))]
    speed = grid.rows[2][1][0]
    assert re.fullmatch(r"\d+\.\d\d×", speed.text)
    assert isinstance(speed.sort, float)
    assert re.fullmatch(r"\d+\.\d\d–\d+\.\d\d", speed.under)
    assert sheet.rows[0][sheet.columns.index("cell")].text == only_store(results).folder.name[-12:]


def test_a_grid_shows_the_estimators_that_its_caption_explains(results: Path) -> None:
    path = results / "tables" / "toy.json"
    words = json.loads(path.read_text())
    assert [name for name, _ in words["estimators"]] == ["speedup_geomean", "tau_micro"]
    assert all(f"{name}: {meaning}" in words["caption"][0] for name, meaning in words["estimators"])
    words["estimators"] = [["speedup_paper", "one meaning"], ["tau_paper", "another"]]
    path.write_text(json.dumps(words))
    (sheet,) = sheets.table_sheets(results)
    assert sheet.grids[0].estimators == ["speedup_paper", "tau_paper"]
    path.unlink()  # a table that nothing is said of is shown in full only, under its name
    (sheet,) = sheets.table_sheets(results)
    assert (sheet.title, sheet.caption, sheet.grids) == ("toy", [], [])
    assert len(sheet.rows) == 3


@pytest.mark.parametrize("content", ["", "[]", '{"title": "x"}', '{"title": "x", "caption": [], "estimators": [1]}'])
def test_words_of_another_form_are_named_and_no_traceback(results: Path, content: str) -> None:
    (results / "tables" / "toy.json").write_text(content)
    with pytest.raises(
        DamagedRecordError, match=r"toy\.json does not describe a table .*; remove it and draw it again"
    ):
        page.render(results)


def test_a_method_without_weights_and_a_table_of_another_shape(results: Path) -> None:
    path = results / "tables" / "toy.csv"
    frame = pd.read_csv(path)
    lacking = frame.iloc[[-1]][["model", "dtype", "decode", "task"]].assign(method="medusa", lossless="no weights")
    path.write_text(pd.concat([frame, lacking]).to_csv(index=False))
    (sheet,) = sheets.table_sheets(results)
    assert [name for name, _ in sheet.grids[0].rows] == ["vanilla", "medusa", "lookahead", "eagle2"]
    (entry, _) = sheet.grids[0].rows[1][1]
    assert (entry.text, entry.sort, entry.under) == ("–", None, "no weights")
    path.write_text("name,value\na,1\na,\n")  # no grid to make of it: every column is still shown
    (sheet,) = sheets.table_sheets(results)
    assert sheet.grids == []
    assert [[one.text for one in row] for row in sheet.rows] == [["a", "1"], ["a", "–"]]


@pytest.mark.parametrize(
    ("gaps", "word", "good"),
    [([], "✓ identical", True), ([[3, 0.5]], "✗ VIOLATION", False)],
)
def test_the_verdict_is_of_the_records(results: Path, gaps: list[Any], word: str, good: bool) -> None:
    path = only_store(results).folder / "blocks.jsonl"
    blocks = [json.loads(line) for line in path.read_text().splitlines()]
    (run,) = [run for run in blocks[0]["runs"] if run["method"] == "eagle2"]
    run["turns"][0]["gaps"] = gaps
    path.write_text("".join(json.dumps(block) + "\n" for block in blocks))
    (cell,) = cells.recorded_cells(results)
    words = {one.method: one.word for one in cell.judged}
    assert words == {"vanilla": "✓ identical", "lookahead": "✓ identical", "eagle2": word}
    assert (f'<td class="bad">{word}</td>' in page.render(results)) == (not good)


def test_a_cell_says_whether_it_is_whole_and_a_folder_without_one_is_passed_over(results: Path) -> None:
    store = only_store(results)
    (results / "runs" / "stray" / "sessions").mkdir(parents=True)
    assert [cell.state for cell in cells.recorded_cells(results)] == ["done"]
    store.mark_failed({"error": "RuntimeError: out of memory"})
    assert "failed: RuntimeError: out of memory" in page.render(results)
    (store.folder / "FAILED.json").unlink()
    (store.folder / "DONE").unlink()
    assert [cell.state for cell in cells.recorded_cells(results)] == ["unfinished"]


def test_damage_is_an_error_that_names_the_line(results: Path) -> None:
    path = only_store(results).folder / "traces.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(DamagedRecordError, match=r"traces\.jsonl:1 is damaged"):
        page.render(results)


def test_scripts_are_short_and_never_make_html_of_a_string() -> None:
    for path in (ROOT / "bench" / "report" / "page" / "html").iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400
        assert max(map(len, text.splitlines())) <= 120
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch("):
            assert word not in text, f"{word} in {path.name}"
