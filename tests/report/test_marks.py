"""A number that may not be what it seems carries its mark into every page that shows it, or does not get there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.plan.cells import Cell
from bench.plan.schema import Style
from bench.records import provenance
from bench.records.store import Store
from bench.report import figures, layout, page, tables
from bench.report.tables import Report
from tests.support.records import MACHINE, PAPER, TABLE, measured, rewritten

Block = dict[str, Any]
OURS = {"git": "a" * 40, "dirty": False, "versions": {"torch": "2.13", "transformers": "5.24"}}


def pages(report: Report, results: Path) -> dict[str, str]:
    """What a reader may open: Markdown, LaTeX and the page."""
    paths = {path.suffix: path for path in layout.write(report, TABLE, results, PAPER)}
    return {".md": paths[".md"].read_text(), ".tex": paths[".tex"].read_text()}


def planted_miscount(blocks: list[Block]) -> list[Block]:
    blocks[1]["runs"][1]["turns"][0]["emitted"][2] += 1
    return blocks


def planted_duplicate(blocks: list[Block]) -> list[Block]:
    return [*blocks, blocks[0]]


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted_miscount, "question b: the steps of pld count 10 tokens, its answer has 9"),
        (planted_duplicate, "question a was recorded twice"),
    ],
)
def test_a_token_or_a_question_counted_twice_takes_its_cell_out(tmp_path: Path, plant: Any, said: str) -> None:
    bad, good = measured(tmp_path, "bad"), measured(tmp_path, "good")
    rewritten(bad, tmp_path, plant)
    report = tables.collect([bad, good], tmp_path)
    assert set(report.rows["task"]) == {"good"}
    (hole,) = report.holes
    assert hole.startswith(f"{bad.name}: {said}")
    assert all(said in text for text in pages(report, tmp_path).values())


def planted_tie(one: Cell, results: Path, gap: float) -> None:
    """Another token than vanilla's, this far from what the target would have chosen."""

    def change(blocks: list[Block]) -> list[Block]:
        blocks[0]["runs"][1]["turns"][0] |= {"output_ids": [99] * 9, "gaps": [[0, gap]]}
        return blocks

    rewritten(one, results, change)


def test_a_planted_near_tie_is_counted_beside_its_number(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    planted_tie(one, tmp_path, 1e-3)
    report = tables.collect([one], tmp_path)
    assert report.holes == []
    written = pages(report, tmp_path)
    assert "identical 1/2, near-tie 1" in written[".md"]
    assert "x*† &" in written[".tex"]


def test_a_planted_lossy_method_has_no_number_at_all(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    planted_tie(one, tmp_path, 0.1)
    report = tables.collect([one], tmp_path)
    assert list(report.rows["method"]) == ["vanilla"]
    assert all("VIOLATION 1" in text for text in pages(report, tmp_path).values())


def versions(one: Cell, results: Path, *codes: dict[str, Any]) -> None:
    """Let each block have been measured by another session, with this code."""
    store = Store(one.folder(results))
    for number, code in enumerate(codes):
        store.write_session(f"s{number}", {"hardware": MACHINE, "provenance": code})
    rewritten(one, results, lambda blocks: [{**each, "session": f"s{n}"} for n, each in enumerate(blocks)])


OTHERS = {
    "another commit": {"git": "b" * 40},
    "edited files": {"dirty": True},
    "another torch": {"versions": {**OURS["versions"], "torch": "2.14"}},
    "no git": {"git": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("within", [True, False], ids=["in one cell", "between cells"])
def test_code_of_several_versions_is_said_beside_the_machine(tmp_path: Path, kind: str, within: bool) -> None:
    one, two = measured(tmp_path, "one"), measured(tmp_path, "two")
    other = {**OURS, **OTHERS[kind]}
    for cell, codes in ((one, (OURS, other if within else OURS)), (two, (other, other))):
        versions(cell, tmp_path, *codes)
    report = tables.collect([one] if within else [one, two], tmp_path)
    for text in pages(report, tmp_path).values():
        assert "MEASURED WITH 2 VERSIONS OF THE CODE" in text.replace("\\", "")
    table = TABLE.__class__("toy", "A title", "all", ["one"], ["greedy"], figure="bars")
    assert "MEASURED WITH 2 VERSIONS OF THE CODE" in figures.write([one, two], table, tmp_path, Style("paper"))[0]


def test_two_states_of_an_edited_checkout_are_two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    for name in ("bench", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "results" / "table.md").write_text("old")
    file = tmp_path / "bench" / "one.py"
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "bench" / "records" / "provenance.py"))
    file.write_text("a = 1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "One")
    clean = provenance.describe()
    assert (clean["dirty"], clean["edits"]) == (False, None)
    (tmp_path / "results" / "table.md").write_text("new")
    said = {provenance.code(clean), provenance.code(provenance.describe())}
    for content in ("a = 2\n", "a = 3\n", "a = 2\n"):
        file.write_text(content)
        said.add(provenance.code(provenance.describe()))
    assert len(said) == 3


def test_code_of_one_version_needs_no_word(tmp_path: Path) -> None:
    one = measured(tmp_path, "one")
    versions(one, tmp_path, OURS, OURS)
    assert tables.collect([one], tmp_path).machine == "A CPU, 2 cores"


def test_an_unstable_number_says_so_in_every_page(tmp_path: Path) -> None:
    report = tables.collect([measured(tmp_path, "one")], tmp_path)
    written = pages(report, tmp_path)
    assert "2 questions: no interval" in written[".md"]
    assert "x* &" in written[".tex"]
    assert "* the speedup's interval is wider than" in written[".tex"]
    store = Store(next((tmp_path / "runs").iterdir()))
    store.write_session("s", {"hardware": MACHINE, "provenance": OURS})
    store.write_cell({**measured(tmp_path / "x", "one").identity, "device": "cpu"})
    assert "2 questions: no interval" in page.render(tmp_path)
