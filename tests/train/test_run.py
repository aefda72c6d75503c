"""``python -m methods.train`` as a user runs it, on a small random Llama in hub layout."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from methods.base import Request
from methods.loading.model import Source, load_model
from methods.train.corpus import texts_of
from methods.train.overlap import Overlap
from tests.support.commands import Command, environment
from tests.support.models import run
from tests.support.training import DIALOGUES, SMALL, arguments

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def as_typed(*words: str) -> list[str]:
    return [sys.executable, "-m", "methods.train", *words]


def trained(command: Command, folder: Path, work: Path, method: str, *extra: str) -> dict[str, Any]:
    result = command(*arguments(folder, work, method, *extra), module="methods.train")
    assert result.code == 0, result.err
    return result.last_line


@pytest.fixture(scope="module")
def work(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that one question was kept out of, and an EAGLE head."""
    folder = tmp_path_factory.mktemp("train")
    subprocess.run(as_typed(*arguments(tiny_model_folder, folder, "eagle")), cwd=ROOT, env=environment(), check=True)
    return folder


def test_the_manifest_is_complete(work: Path) -> None:
    manifest = json.loads((work / "weights" / "eagle" / "manifest.json").read_text())
    assert manifest["method"] == "eagle"
    assert manifest["model"]["kind"] == "folder"
    assert re.fullmatch("[0-9a-f]{64}", manifest["corpus"]["sha256"])
    assert manifest["corpus"]["tokens"]["trained"] > 1000
    assert manifest["training"]["steps"] == 30
    assert [step for step, _ in manifest["agreement_by_depth"]] == [5, 10, 15, 20, 25, 30]
    assert manifest["probe"]["tau_micro"] >= 1
    assert set(manifest["files"]) == {"model.safetensors", "config.json", "draft_vocab.safetensors"}
    assert manifest["versions"]["torch"]
    declared = json.loads((work / "weights" / "eagle" / "config.json").read_text())
    assert declared["rope_theta"] == declared["rope_parameters"]["rope_theta"], "the authors' code reads the first"


@pytest.mark.parametrize("method", ["medusa", "hydra", "sps"])
def test_every_head_trains_on_the_same_corpus_and_drafts_losslessly(
    tiny_model_folder: Path, work: Path, method: str, command: Command
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (work / "corpus").iterdir()}
    manifest = trained(command, tiny_model_folder, work, method)
    assert {path: path.stat().st_mtime_ns for path in (work / "corpus").iterdir()} == before
    assert manifest["loss"] == manifest["loss"]
    loaded = load_model(Source("folder", str(tiny_model_folder)))
    knobs: dict[str, Any] = {"weights": str(work / "weights" / method)}
    if method != "sps":
        knobs["tree"] = "3 | 0:2"
    request = Request((5, 6, 7, 5, 6), 24, frozenset())
    drafter, vanilla = methods.load(method, knobs, loaded.target), methods.load("vanilla", {}, loaded.target)
    assert run(loaded.target, drafter, request)[0] == run(loaded.target, vanilla, request)[0]


def test_training_that_is_killed_three_times_ends_with_the_curve_of_an_unbroken_run(
    tiny_model_folder: Path, work: Path, tmp_path: Path, command: Command
) -> None:
    """SIGKILL at random moments, each after another checkpoint was written; the losses agree to 1e-3."""
    (tmp_path / "corpus").symlink_to(work / "corpus")
    (tmp_path / "features").symlink_to(work / "features")
    checkpoint = tmp_path / "training" / "eagle.pt"
    chance = random.Random(4)
    for _ in range(3):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen(
            as_typed(*arguments(tiny_model_folder, tmp_path, "eagle")),
            cwd=ROOT,
            env=environment(),
            stderr=subprocess.DEVNULL,
        )
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        time.sleep(chance.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    trained(command, tiny_model_folder, tmp_path, "eagle")
    states = [torch.load(folder / "training" / "eagle.pt", weights_only=True) for folder in (work, tmp_path)]
    losses = [torch.tensor(state["curve"]["loss"]) for state in states]
    assert len(losses[0]) == 30
    assert {int(each["step"]) for each in states[1]["optimizer"]["state"].values()} == {30}
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-3)


def test_training_goes_on_from_a_head_of_its_kind_alone(
    tiny_model_folder: Path, work: Path, tmp_path: Path, command: Command
) -> None:
    for name in ("corpus", "features"):
        (tmp_path / name).symlink_to(work / name)
    first = work / "training" / "eagle.pt"
    brief = (f"training.start={first}", "training.tokens=96", "training.learning_rate=1e-9")
    manifest = trained(command, tiny_model_folder, tmp_path, "eagle", *brief)
    assert manifest["training"]["start"] == hashlib.sha256(first.read_bytes()).hexdigest()
    before, after = (
        torch.load(folder / "training" / "eagle.pt", weights_only=True)["best"] for folder in (work, tmp_path)
    )
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)
    result = command(*arguments(tiny_model_folder, tmp_path, "medusa", *brief), module="methods.train")
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith(f"error: training.start={first} does not hold the weights of such a")


def test_no_text_of_the_corpus_shares_ten_words_with_a_question(
    tiny_model_folder: Path, work: Path, tmp_path: Path, command: Command
) -> None:
    """A question made of a text that this very seed writes: with it excluded, that text is gone and others stay."""
    tokenizer = load_model(Source("folder", str(tiny_model_folder))).tokenizer
    (shard,) = (work / "corpus").glob("reading-*.safetensors")
    victim = tokenizer.decode(texts_of(shard)[0])
    (tmp_path / "q.jsonl").write_text(json.dumps({"turns": [victim]}) + "\n")
    trained(command, tiny_model_folder, tmp_path, "eagle", f"corpus.exclude=[{tmp_path}/q.jsonl]")
    (again,) = (tmp_path / "corpus").glob("reading-*.safetensors")
    texts = [tokenizer.decode(text) for text in texts_of(again)]
    assert victim not in texts
    assert texts
    assert not any(text in Overlap.of([str(tmp_path / "q.jsonl")]) for text in texts)


def test_the_three_commands_of_the_page_train_and_measure_heads_for_a_model_of_one_s_own(
    tiny_model_folder: Path, tmp_path: Path, command: Command
) -> None:
    """As docs/training.md has them, word for word; only sizes are added."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    joined = page.replace("\\\n", "").splitlines()
    lines = [line.strip() for line in joined if line.startswith("    python") and "PATH" in line]
    assert len(lines) == 3
    bench = ["task.count=1", "decode.max_new_tokens=8", "measure=quick", f"results={tmp_path}/results"]
    for line in lines:
        line = line.replace("PATH", str(tiny_model_folder)).replace("build/mine", f"{tmp_path}/mine")
        _, _, module, *typed = shlex.split(line)
        result = command(*typed, *([*DIALOGUES, *SMALL] if module == "methods.train" else bench), module=module)
        assert result.code == 0, result.err
    (blocks,) = (tmp_path / "results" / "runs").glob("*/blocks.jsonl")
    (block,) = [json.loads(text) for text in blocks.read_text().splitlines()]
    assert len(block["runs"]) == 4


WRONG = {
    ("method=eagle2",): "eagle2 drafts with the head of eagle: train method=eagle",
    ("method=pld",): "method=pld cannot be trained; choose one of sps, medusa, hydra, eagle",
    ("method=eagle", "corpus.greedy_share=2"): "corpus.greedy_share=2.0 must lie in [0, 1]",
    ("method=eagle", "heads.eagle.noise=much"): "heads.eagle.noise: Value 'much' of type 'str' could not be converted",
    ("method=sps", "heads.sps.layers=0"): "heads.sps.layers=0 must lie in [1, 1000]",
    ("method=eagle", "training.window=many"): "training.window",
    ("method=eagle", "training.windw=8"): "windw",
    ("method=eagle", "training.start=nowhere.pt"): "training.start=nowhere.pt is no file; give a checkpoint",
    ("method=eagle", "model=local", "model.id=nowhere"): "model.id=nowhere is not a model folder",
}


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_a_wrong_request_is_one_line_and_exit_2(wrong: tuple[str, ...], tmp_path: Path, command: Command) -> None:
    result = command(*wrong, f"work={tmp_path}/work", module="methods.train")
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    assert WRONG[wrong] in result.err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("corpus.seed=1", "holds a corpus of other settings or another model; set work=ANOTHER_FOLDER, or delete it"),
        ("model.dtype=float64", "holds a corpus of other settings or another model"),
        ("training.learning_rate=1e-4", "eagle.pt was trained with other settings or on another corpus; delete it"),
        ("heads.eagle.noise=0.2", "eagle.pt was trained with other settings or on another corpus; delete it"),
    ],
)
def test_work_of_other_settings_is_refused(
    tiny_model_folder: Path, work: Path, command: Command, change: str, said: str
) -> None:
    result = command(*arguments(tiny_model_folder, work, "eagle", change), module="methods.train")
    assert result.code == 2
    assert said in result.err
