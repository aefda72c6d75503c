"""Every command of the README works as it stands, and its table is the committed one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")]


def python_commands() -> list[str]:
    """The console script is started by its module, which does not need to be installed."""
    typed = [re.sub(r"^draftbench ", "python -m bench ", command) for command in COMMANDS]
    return [command for command in typed if command.startswith("python -m bench")]


@pytest.mark.slow
@pytest.mark.parametrize("command", python_commands())
def test_bench_commands_compose(command: str, tmp_path: Path) -> None:
    """The real command with ``plan.dry_run=true``: it must parse, find its questions and print a plan."""
    (tmp_path / "questions.jsonl").write_text('{"question_id": 1, "category": "", "turns": ["hello"]}\n')
    _, *arguments = shlex.split(command)
    if "bench.report" in command:  # draws from records: on an empty folder it lists the holes and says so
        result = _python([*arguments, f"results={tmp_path}"], tmp_path)
        assert result.returncode == 1
        assert '"holes"' in result.stdout
        return
    extra = [] if "--help" in command else [f"results={tmp_path}", "plan.dry_run=true"]
    result = _python([*arguments, *dict.fromkeys(extra)], tmp_path)
    assert result.returncode == 0, result.stderr


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("make "):
            for target in command.split()[1:]:
                assert re.search(rf"^{re.escape(target)}:", makefile, re.M), f"no make target {target}"


@pytest.mark.parametrize("target", ["reproduce-table1", "reproduce-figures"])
def test_a_table_is_fetched_for_before_it_is_measured(target: str) -> None:
    """Two commands are all the set-up, on a machine with a GPU and no models too."""
    recipe = subprocess.run(["make", "-n", target], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert 0 < recipe.index("-m bench.prefetch table=") < recipe.index("-m bench.run table=")


def test_library_example_runs(tiny_model_folder: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.S)
    assert found
    code = found.group(1).replace("path/to/model", str(tiny_model_folder))
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment(), check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("(") > 1


def test_table_is_the_committed_one() -> None:
    table = (ROOT / "results" / "reference" / "tables" / "table1.md").read_text(encoding="utf-8")
    rows = [line for line in README.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert all(row in table for row in rows)


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_paths_in_prose_exist() -> None:
    for named in re.findall(r"`((?:bench|conf|docs|methods|results|scripts|tests)/[^`\s<*]+)`", README):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_no_line_of_a_page_is_over_120_characters(page: Path) -> None:
    wide = [number for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120]
    assert wide == []


def _python(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment(), check=False
    )
