"""The wheel, installed into an empty environment and used from a folder that has a ``bench/`` of its own.

Dependencies are those of the environment that runs the tests; the checkout itself is not importable there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from bench import __version__
from tests.support.commands import ROOT, tiny_settings, write_questions

pytestmark = pytest.mark.slow

PACKAGES = ("bench", "methods", "conf")
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a build/ beside what it builds."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=UNWANTED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(built)]
    run([sys.executable, "-m", "pip", "wheel", *options, str(source)], source)
    (made,) = built.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment with this wheel in it."""
    place = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], place)
    python = place / "bin" / "python"
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)], place)
    (site,) = place.glob("lib/python*/site-packages")
    # A folder that is named in a .pth is searched, but its own .pth files are not read: an editable install stays out.
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    return place / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Somebody's project, which has a package named like ours."""
    (tmp_path / "bench").mkdir()
    for name in ("__init__.py", "__main__.py", "run.py"):
        (tmp_path / "bench" / name).write_text("raise SystemExit('somebody else\\'s bench')\n")
    return tmp_path


def run(command: list[str], cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A program in a folder, without the tests' own PYTHONPATH."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, check=False, timeout=120)
    assert done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_it_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    listed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    assert listed == {path.as_posix() for path in ours if "__pycache__" not in path.parts}


def test_its_messages_name_no_script_that_only_a_checkout_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        programs = [name for name in archive.namelist() if name.endswith((".py", ".jinja", ".js"))]
        script = re.compile(r"scripts(/[\w/]+\.(py|sh|sbatch)|\.benchmarks)")
        assert not [name for name in programs if script.search(archive.read(name).decode())]


def test_one_cell_and_its_table_from_another_folder(installed: Path, folder: Path, tiny_model_folder: Path) -> None:
    questions = write_questions(folder / "toy.jsonl", [["Hello?"], ["One?", "Two?"], ["Three?"]])
    settings = [*tiny_settings(tiny_model_folder, folder / "results"), "task.name=toy", f"task.path={questions}"]
    cell = ["method=pld", *settings, "decode.max_new_tokens=8", "measure=quick", "measure.warmup_tokens=0"]
    ran = run([str(installed / "draftbench"), "run", *cell], folder)
    assert json.loads(ran.stdout.splitlines()[-1])["holes"] == []
    drawn = run([str(installed / "draftbench"), "report", *cell], folder)
    assert json.loads(drawn.stdout.splitlines()[-1])["holes"] == []
    assert "| pld " in drawn.stdout
    assert (folder / "results" / "report.html").is_file()


def test_the_published_numbers_and_names_are_there(installed: Path, folder: Path) -> None:
    program = (
        "from bench.report import published as p; "
        "print(len(p.numbers('table1')), p.printed('method', 'eagle2'), p.__file__)"
    )
    said = run([str(installed / "python"), "-P", "-c", program], folder).stdout.split()
    assert said[:2] == ["448", "EAGLE-2"]
    assert Path(said[2]).is_relative_to(installed.parent)


def test_a_slurm_array_starts_the_installed_program(installed: Path, folder: Path, tiny_model_folder: Path) -> None:
    """It is a child process, ``python -m bench.run``; here it finds no Slurm, which only our own program looks for."""
    pytest.importorskip("submitit")
    questions = write_questions(folder / "toy.jsonl", [["Hello?"]])
    settings = [*tiny_settings(tiny_model_folder, folder / "results"), "task.name=toy", f"task.path={questions}"]
    done = run([str(installed / "draftbench"), "run", "method=pld", *settings, "launcher=slurm"], folder, code=1)
    assert "submitting 1 tasks" in done.stderr
    assert "somebody else" not in done.stderr


def test_the_version_is_that_of_the_package(installed: Path, wheel: Path, folder: Path) -> None:
    assert run([str(installed / "draftbench"), "--version"], folder).stdout == f"draftbench {__version__}\n"
    assert wheel.name.startswith(f"draftbench-{__version__}-")
