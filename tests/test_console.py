"""The console script: which program a word starts, what a wrong word is told, and what is started from there."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench import __version__
from bench.__main__ import COMMANDS, main
from tests.support.commands import ROOT


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A command line to set, and an environment to be put back."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    return monkeypatch


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gets_the_rest_of_the_line(typed: pytest.MonkeyPatch, name: str) -> None:
    seen: list[list[str]] = []
    typed.setattr(import_module(COMMANDS[name][0]), "main", lambda: seen.append(sys.argv))
    typed.setattr(sys, "argv", ["/bin/draftbench", name, "a=1", "b"])
    assert main() is None
    assert seen == [[f"draftbench {name}", "a=1", "b"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "unknown command 'rum'; did you mean 'run'? known: run, report, tau, train, prefetch, convert; see"),
        (["-x"], "unknown command '-x'; known: run, report, tau, train, prefetch, convert; see draftbench --help"),
        ([], "no command given; see draftbench --help"),
        (["prefetch", "questions", "URL", "more"], "'more' is one word too many; type: draftbench prefetch questions"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(
    typed: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    typed.setattr(sys, "argv", ["/bin/draftbench", *arguments])
    with pytest.raises(SystemExit) as stopped:
        sys.exit(main())
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"error: {said}")
    assert len(printed.err.splitlines()) == 1


def test_help_and_version(typed: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed.setattr(sys, "argv", ["/bin/draftbench", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"draftbench {__version__}\n"
    typed.setattr(sys, "argv", ["/bin/draftbench", "--help"])
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize(("first", "safe"), [("bin", "1"), (".", "")], ids=["console script", "python -m bench"])
def test_what_it_starts_looks_for_this_package_where_it_was_found(
    typed: pytest.MonkeyPatch, tmp_path: Path, first: str, safe: str
) -> None:
    typed.chdir(tmp_path)
    typed.setattr(sys, "path", [str(tmp_path / first), *sys.path])
    typed.setattr(import_module(COMMANDS["run"][0]), "main", lambda: None)
    typed.setattr(sys, "argv", ["draftbench", "run"])
    main()
    assert os.environ["PYTHONSAFEPATH"] == safe


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
