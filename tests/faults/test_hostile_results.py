"""A stranger's results, and names that a table's readers would act on: named, never executed, never written through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.plan.cells import Question
from bench.plan.schema import Style, Table, Task
from bench.records.store import DamagedRecordError, Store, own_folder
from bench.report import layout, page, tables
from methods.common.errors import ConfigError
from tests.support.records import MACHINE, measured


def test_latex_of_strangers_writes_and_reads_no_file(tmp_path: Path) -> None:
    evil = r"\immediate\write18{touch touched}\input{/etc/passwd}}^^5cinput"
    one = measured(tmp_path, "one", methods={"pld": {"note": evil, "weights": {"kind": "folder", "id": evil}}})
    Store(one.folder(tmp_path)).mark_failed({"error": evil})
    report = tables.collect([one, measured(tmp_path, "two & $x$ {y}_z")], tmp_path)
    made = {
        path.suffix: path
        for path in layout.write(report, Table("t", evil, "all", ["one"], ["greedy"]), tmp_path, Style("paper"))
    }
    text = made[".tex"].read_text()
    assert "\\write" not in text
    assert "\\input" not in text
    assert "^^" not in text
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@SUM(A1)", "a|b", "a\nb", "a\tb", "../x", ".x", "", " ", "x" * 65]
)
def test_a_name_that_a_spreadsheet_or_a_path_would_act_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.name=") as refused:
        Task(name, "builtin", None)
    assert "\n" not in str(refused.value)


@pytest.fixture
def strange(tmp_path: Path) -> Any:
    return measured(tmp_path / "results", "one")


LINKS = {
    "all cells": "runs",
    "a cell": "runs/{cell}",
    "its blocks": "runs/{cell}/blocks.jsonl",
    "its disturbed blocks": "runs/{cell}/disturbed.jsonl",
    "its traces": "runs/{cell}/traces.jsonl",
    "its events": "runs/{cell}/events.jsonl",
    "its sessions": "runs/{cell}/sessions",
    "the tables": "tables",
    "the figures": "figures",
}


@pytest.mark.parametrize("kind", LINKS)
def test_nothing_is_written_through_a_link(tmp_path: Path, strange: Any, kind: str) -> None:
    results, outside = tmp_path / "results", tmp_path / "outside"
    path = results / LINKS[kind].format(cell=strange.name)
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir() if "." not in path.name else outside.write_text("")
    path.symlink_to(outside)
    before = content(outside)
    with pytest.raises(ConfigError, match="is a link, and would be written through; remove it"):
        opened(strange, results) if "runs" in LINKS[kind] else own_folder(path)
    assert content(outside) == before


def opened(one: Any, results: Path) -> None:
    with Store(one.folder(results)).writing():
        pytest.fail("the cell was opened")


def content(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in [path, *path.rglob("*")] if one.is_file()}


def test_a_link_in_place_of_a_table_or_its_draft_is_replaced_and_not_followed(tmp_path: Path, strange: Any) -> None:
    results, outside = tmp_path / "results", tmp_path / "outside"
    outside.write_text("mine")
    (results / "tables").mkdir()
    for name in ("toy.md", f".toy.csv.{os.getpid()}"):
        (results / "tables" / name).symlink_to(outside)
    layout.write(
        tables.collect([strange], results), Table("toy", "", "all", ["one"], ["greedy"]), results, Style("paper")
    )
    assert outside.read_text() == "mine"
    assert not (results / "tables" / "toy.md").is_symlink()


def test_what_a_link_points_to_is_not_put_on_the_page(tmp_path: Path, strange: Any) -> None:
    results = tmp_path / "results"
    (tmp_path / "id_rsa").write_text("a,b\nprivate,key\n")
    for folder, name in (("figures", "x.svg"), ("tables", "x.csv")):
        (results / folder).mkdir()
        (results / folder / name).symlink_to(tmp_path / "id_rsa")
    finished(strange, results)
    text = page.render(results)
    assert "private" not in text
    assert "YSxi" not in text, "base64 of the file"


def finished(one: Any, results: Path, **facts: Any) -> Store:
    store = Store(one.folder(results))
    cell = {**one.identity, "device": "cpu"}
    store.write_cell(cell)
    store.write_session("s", {"hardware": MACHINE, "provenance": {"git": None, "dirty": False}} | facts)
    return store


BLOCK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no runs": lambda block: block.pop("runs"),
    "runs that are a word": lambda block: block.update(runs="many"),
    "a method that is a number": lambda block: block["runs"][0].update(method=3),
    "no tokens": lambda block: block["runs"][0]["turns"][0].pop("output_ids"),
    "tokens that are text": lambda block: block["runs"][0]["turns"][0].update(output_ids=["a"] * 9),
    "tokens without end": lambda block: block["runs"][0]["turns"][0].update(emitted=[10**400]),
    "times that are text": lambda block: block["runs"][0]["turns"][0].update(end_ns=["1"]),
    "no times": lambda block: block["runs"][0]["turns"][0].update(end_ns=[]),
    "gaps that are no pairs": lambda block: block["runs"][0]["turns"][0].update(gaps=[1]),
    "a question that is a list": lambda block: block.update(question_id=["a"]),
    "a repeat that is true": lambda block: block.update(repeat=True),
    "failures without a method": lambda block: block.update(failed=[{}]),
}


@pytest.mark.parametrize("kind", BLOCK)
def test_a_block_of_another_form_is_named_and_no_traceback(tmp_path: Path, strange: Any, kind: str) -> None:
    results = tmp_path / "results"
    path = finished(strange, results).folder / "blocks.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    BLOCK[kind](second)
    path.write_text("".join(json.dumps(each) + "\n" for each in (first, second)))
    if kind == "tokens without end":  # a number is a number; it is not the answer's length
        assert "count 1000" in tables.collect([strange], results).holes[0]
        return
    for read in (lambda: tables.collect([strange], results), lambda: page.render(results)):
        with pytest.raises(DamagedRecordError, match=r"blocks\.jsonl:2 is no block; move the folder away"):
            read()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cell.json", "{}"),
        ("cell.json", '{"model": {"dtype": "int3"}}'),
        ("cell.json", "[" * 100_000),
        ("sessions/s.json", "{}"),
        ("sessions/s.json", '{"hardware": {}, "provenance": {}}'),
        ("sessions/s.json", '{"hardware": [], "provenance": 3}'),
        ("traces.jsonl", '{"schema": 1}\n'),
        ("traces.jsonl", '{"schema": 1, "session": "s", "turns": 3}\n'),
        ("blocks.jsonl", "[" * 100_000 + "\n"),
    ],
)
def test_a_file_of_another_form_is_named_and_no_traceback(
    tmp_path: Path, strange: Any, file: str, content: str
) -> None:
    results = tmp_path / "results"
    (finished(strange, results).folder / file).write_text(content)
    with pytest.raises(DamagedRecordError) as refused:
        page.render(results)
    assert str(results) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b'a,b\n"1\n'], ids=["empty", "binary", "torn"])
def test_a_table_that_is_none_is_named_and_no_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "x.csv").write_bytes(content)
    with pytest.raises(DamagedRecordError, match=r"x\.csv is no table"):
        page.render(tmp_path)


def test_the_strange_folder_of_these_tests_is_a_good_one(tmp_path: Path, strange: Any) -> None:
    finished(strange, tmp_path / "results")
    assert "A CPU, 2 cores" in page.render(tmp_path / "results")
    assert strange.questions[0] == Question("a", "toy", ("Hello?",))
