"""A method in a package of its own is installed, listed, configured, run and put in the table, without a fork."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import methods
from methods.base import Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.target import Target
from tests.support.commands import Command, in_subprocess, tiny_settings, write_questions
from tests.support.models import random_prompts, run, tiny_llama

PACKAGE = Path(__file__).resolve().parent / "outside_package"
TURNS = [["No no no no?"], ["Aaaaaaaa, aaaaaaaa!", "Again?"]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package as pip installs it; built from a copy, so that the tree stays clean."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def importable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "draftbench_repeat", raising=False)


def register(site: Path, package: str, *names: str) -> Path:
    """What pip leaves of a package that registers these names, and no more."""
    facts = site / f"{package}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = ["[draftbench.methods]", *(f"{name} = {package}.decoder:Drafter" for name in names)]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def test_a_run_measures_it_beside_a_built_in_method_and_finds_it_lossless(
    installed: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    questions = write_questions(tmp_path / "toy.jsonl", TURNS)
    settings = [*tiny_settings(tiny_model_folder, tmp_path / "results"), "task.name=toy", f"task.path={questions}"]
    settings += ["methods.repeat.num_draft=3", "decode.max_new_tokens=12", "measure=quick"]
    result = in_subprocess("method=[repeat,pld]", *settings, cwd=tmp_path)
    assert result.code == 0, result.err
    assert result.last_line["holes"] == []
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in result.out.splitlines() if line[:1] == "|"]
    header = next(row for row in rows if "lossless" in row)
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)}
    assert {"vanilla", "repeat", "pld"} <= set(found)
    for name in ("repeat", "pld"):
        assert (found[name]["task"], found[name]["questions"], found[name]["turns"]) == ("toy", "2", "3")
        assert found[name]["lossless"] == found["vanilla"]["lossless"]  # nothing but identical turns
        assert "identical" in found[name]["lossless"]
    assert float(found["repeat"]["tau_micro"]) >= 1.0
    assert "repeat: num_draft=3." in result.out


@pytest.mark.usefixtures("importable")
def test_it_is_listed_behind_the_built_in_methods() -> None:
    assert methods.names() == [*methods._BUILT_IN, "repeat"]


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=4)], ids=["greedy", "t1"])
def test_it_emits_vanillas_text_token_for_token(sampling: Sampling) -> None:
    target = Target(tiny_llama(layers=1, vocab_size=6))
    accepted = 0
    for prompt in random_prompts(6, lengths=(1, 4, 9), vocab=6):
        request = Request(prompt, 20, frozenset({5}), sampling)
        tokens, steps = run(target, methods.load("repeat", {"num_draft": 3}, target), request)
        assert tokens == run(target, methods.load("vanilla", {}, target), request)[0]
        accepted += sum(step.accepted for step in steps)
    assert accepted > 0


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"num_drafts": 3}, "num_drafts is not a setting; did you mean 'num_draft'?"),
        ({"num_draft": "3"}, "num_draft='3' must be of type int"),
        ({"num_draft": 0}, "num_draft must be 1 or more"),
    ],
)
def test_its_settings_are_checked_like_those_of_a_built_in_method(knobs: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        methods.configure("repeat", knobs)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("taken", ["eagle2", "vanilla"])
def test_a_package_that_takes_a_built_in_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.syspath_prepend(str(register(tmp_path, "greedy_package", "fine", taken)))
    for use in (methods.names, lambda: methods.configure("fine", {})):
        with pytest.raises(ConfigError) as refused:
            use()
        assert str(refused.value) == (
            f"the package of greedy_package.decoder:Drafter registers '{taken}', which is taken; rename it"
        )


def test_two_packages_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first_package", "second_package"):
        monkeypatch.syspath_prepend(str(register(tmp_path / package, package, "fine")))
    with pytest.raises(ConfigError, match="registers 'fine', which is taken; rename it"):
        methods.names()


def test_the_command_line_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tiny_model_folder: Path
) -> None:
    monkeypatch.syspath_prepend(str(register(tmp_path / "site", "greedy_package", "pld")))
    settings = tiny_settings(tiny_model_folder, tmp_path / "results")
    result = Command(monkeypatch, capfd)("method=lookahead", *settings)
    assert result.code == 2
    assert [line for line in result.err.splitlines() if "taken" in line] == [
        "error: the package of greedy_package.decoder:Drafter registers 'pld', which is taken; rename it"
    ]
    assert "Traceback" not in result.err
    assert not (tmp_path / "results").exists()
