"""bench.prefetch against a hub on this machine: what it shows, pins and refuses, and a run without a network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bench import prefetch
from bench.plan import paper_questions
from bench.plan.cells import Question, cell_of
from bench.plan.hub_lock import FILE, Pins, refuse_unpinned
from bench.plan.schema import Decode, Hub, Measure, Model, Setup, Task
from bench.records.store import DamagedRecordError, Store
from methods.common.errors import ConfigError
from methods.loading.model import Source, load_model
from tests.support.commands import ENTRY_POINTS, Command, environment
from tests.support.heads import write_eagle
from tests.support.hub_server import HubServer, Repository, serving

ROWS = [{"prompt": ["Hello hello?", "Again?"], "category": "toy"}, {"prompt": ["Two, two?"], "category": "toy"}]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {".gitattributes": b"* -text\n"}


@pytest.fixture(scope="module")
def published(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """A model with its weights in two formats, an EAGLE head as a pickle, and a data set of two splits."""
    target = load_model(Source("folder", str(tiny_model_folder)), device="cpu").target
    model = contents(tiny_model_folder)
    rows = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    return {
        "models/org/tiny": model | {"pytorch_model.bin": model["model.safetensors"], "README.md": b"# tiny"},
        "models/org/head": contents(write_eagle(tmp_path_factory.mktemp("head"), target)),
        "datasets/org/set": {".gitattributes": b"", "README.md": b"# set", "test.jsonl": rows, "train.jsonl": rows},
    }


@pytest.fixture
def server(published: dict[str, dict[str, bytes]]) -> Iterator[HubServer]:
    with serving(HubServer({name: Repository(dict(files)) for name, files in published.items()})) as running:
        yield running


@pytest.fixture
def command(
    server: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """bench.run and prefetch in this process, their hub being the server and their caches the test's own."""
    import datasets

    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(tmp_path / "home" / "hub"),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("DRAFTBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ENTRY_POINTS, "bench.prefetch", prefetch.main)
    return Command(monkeypatch, capfd)


def settings(results: Path, **weights: str) -> list[str]:
    return [
        *("model=local", "model.name=tiny", "model.kind=hub", "model.id=org/tiny", "model.device=cpu"),
        *("profile=embedded", "decode.max_new_tokens=6", f"results={results}"),
        *("method=eagle", f"methods.eagle.weights={weights.get('eagle', 'org/head')}"),
    ]


def of_the_hub() -> list[str]:
    return [
        *("task.name=toy", "task.source=hub", "task.hub.id=org/set", "task.hub.revision=main", "task.hub.config=null"),
        *("task.hub.split=test", "task.hub.turns=prompt", "task.hub.template=null", "task.hub.reference=null"),
    ]


def test_what_was_fetched_once_is_measured_without_a_network(
    server: HubServer, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    asked = [*settings(results), *of_the_hub()]
    commits = {name: repository.commit for name, repository in server.repositories.items()}
    # As a user types it: in a process of its own, told by its environment where the hub is.
    env = {**environment(), "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    typed = [sys.executable, "-m", "bench.prefetch", *asked]
    done = subprocess.run(typed, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    sizes = [line for line in done.stdout.splitlines() if "org/" in line]
    assert [line.split()[:2] for line in sizes] == [
        ["model", "org/tiny"],
        ["model", "org/head"],
        ["dataset", "org/set"],
    ]
    assert all(line.split()[2] == commit[:8] for line, commit in zip(sizes, commits.values(), strict=True))
    assert json.loads(done.stdout.splitlines()[-1])["lock"] == str(results / FILE)
    for unneeded in ("tiny/resolve/" + commits["models/org/tiny"] + "/pytorch_model.bin", "train.jsonl"):
        assert server.fetched(unneeded) == []
    lock = json.loads((results / FILE).read_text())
    assert lock["model"] == {
        "org/tiny": {"main": commits["models/org/tiny"]},
        "org/head": {"main": commits["models/org/head"]},
    }
    assert lock["dataset"] == {"org/set": {"main": commits["datasets/org/set"]}}
    assert list(lock["files"].values()) == [["test.jsonl"]]

    for repository in server.repositories.values():
        repository.files["added.json"] = b"{}"  # the branches move, the pins don't
    again = command(*asked, module="bench.prefetch")
    assert (again.code, again.last_line["bytes_to_fetch"]) == (0, 0)
    assert json.loads((results / FILE).read_text()) == lock

    asked_before = len(server.log)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ran = command(*asked)
    assert ran.code == 0, ran.err
    assert len(server.log) == asked_before
    (folder,) = (results / "runs").iterdir()
    store = Store(folder)
    assert store.cell()["model"]["revision"] == commits["models/org/tiny"]
    assert store.cell()["source"]["hub"]["revision"] == commits["datasets/org/set"]
    (session,) = store.sessions().values()
    head = {"kind": "hub", "id": "org/head", "revision": commits["models/org/head"]}
    assert session["methods"]["eagle"]["weights"] == head
    assert [len(block.runs[0].turns) for block in store.blocks()] == [2, 1]


def test_a_run_without_pins_is_refused_and_a_plan_is_not(command: Command, server: HubServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    refused = command(*settings(results))
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("error: model=tiny: org/tiny has no commit (revision None), neither")
    assert str(results / FILE) in refused.err
    assert "draftbench prefetch" in refused.err
    assert not results.exists()
    assert command(*settings(results), "plan.dry_run=true").code == 0
    refused = command(*settings(results), *of_the_hub())
    assert (refused.code, "org/set has no commit (revision main)" in refused.err) == (2, True)
    # The target may be pinned by its YAML; the head then still has to be.
    commit = server.repositories["models/org/tiny"].commit
    refused = command(*settings(results), f"model.revision={commit}")
    assert (refused.code, "methods.eagle.weights: org/head has no commit" in refused.err) == (2, True)
    assert server.log == []


def test_sizes_are_shown_first_and_a_plan_fetches_and_pins_nothing(
    command: Command, server: HubServer, tmp_path: Path
) -> None:
    shown = command(*settings(tmp_path / "results"), "plan.dry_run=true", module="bench.prefetch")
    assert shown.code == 0
    files = server.repositories["models/org/tiny"].files
    unneeded = ("pytorch_model.bin", "README.md", ".gitattributes")
    wanted = sum(len(data) for name, data in files.items() if name not in unneeded)
    (line,) = [line for line in shown.out.splitlines() if "org/tiny" in line]
    assert f"{wanted / 1e6:.2f} MB" in line
    assert server.fetched("model.safetensors") == server.fetched("pytorch_model.bin") == []
    assert not (tmp_path / "results").exists()


def test_every_gated_model_is_named_in_one_line(command: Command, server: HubServer, tmp_path: Path) -> None:
    for repository in server.repositories.values():
        repository.gated = True
    for _ in range(2):  # the second time knows the listings from its cache
        refused = command(*settings(tmp_path / "results"), module="bench.prefetch")
        assert refused.code == 2
        (line,) = [line for line in refused.err.splitlines() if line.startswith("error: ")]
        for name in ("org/tiny", "org/head"):
            assert f"accepted at https://huggingface.co/{name};" in line
        assert "hf auth login" in line
    assert not (tmp_path / "results").exists()


def test_what_does_not_fit_on_the_disk_is_refused_before_it_is_fetched(
    command: Command, server: HubServer, tmp_path: Path
) -> None:
    server.claimed["model.safetensors"] = 10**18
    refused = command(*settings(tmp_path / "results"), module="bench.prefetch")
    assert refused.code == 2
    assert "do not fit into" in refused.err
    assert "set HF_HOME to a larger disk" in refused.err
    assert server.fetched("model.safetensors") == []
    assert not (tmp_path / "results").exists()


QUESTIONS = {"mt_bench": b'{"question_id": 1, "turns": ["a"]}\n' * 200, "nq": b'{"question_id": 2, "turns": ["b"]}\n'}


@pytest.fixture
def questions(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """Two files at the paths of the authors' repository, known by their hashes."""
    files = {task: paper_questions.File(f"data/{task}.jsonl", hashlib.sha256(data).hexdigest())
             for task, data in QUESTIONS.items()}  # fmt: skip
    monkeypatch.setattr(paper_questions, "FILES", files)
    monkeypatch.setenv("DRAFTBENCH_CACHE", str(tmp_path / "cache"))
    server.plain = {files[task].path: data for task, data in QUESTIONS.items()}
    return server


def lying(tmp_path: Path) -> list[bytes]:
    """Every file in the cache folder, temporary ones included."""
    return sorted((path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()), key=len)


def test_the_question_files_are_fetched_once(questions: HubServer, tmp_path: Path) -> None:
    prefetch.fetch_questions(questions.url)
    assert {task: paper_questions.checked(task).read_bytes() for task in QUESTIONS} == QUESTIONS
    before = len(questions.log)
    prefetch.fetch_questions(questions.url)
    assert len(questions.log) == before
    paper_questions.where("nq").write_bytes(b"edited")
    prefetch.fetch_questions(questions.url + "/")
    assert lying(tmp_path) == sorted(QUESTIONS.values(), key=len)


def test_a_question_file_that_is_another_is_refused(questions: HubServer, tmp_path: Path) -> None:
    questions.altered.add("data/nq.jsonl")
    with pytest.raises(ConfigError) as refused:
        prefetch.fetch_questions(questions.url)
    assert str(refused.value).startswith("data/nq.jsonl from http")
    assert f"expected {hashlib.sha256(QUESTIONS['nq']).hexdigest()}" in str(refused.value)
    assert lying(tmp_path) == [QUESTIONS["mt_bench"]]


def test_a_question_file_that_does_not_arrive_is_named(questions: HubServer, tmp_path: Path) -> None:
    questions.cuts["data/mt_bench.jsonl"] = 1
    for said, failing in (("the transfer broke off (IncompleteRead)", 0), ("the server answered 503", 503)):
        questions.failing = {"nq": failing} if failing else {}
        with pytest.raises(ConfigError) as refused:
            prefetch.fetch_questions(questions.url)
        assert said in str(refused.value)
        assert f"put the file at {tmp_path / 'cache'}" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert lying(tmp_path) == [QUESTIONS["mt_bench"]]
    with pytest.raises(ConfigError, match=r"^file:///etc/data/nq\.jsonl is no web address"):
        prefetch.fetch_questions("file:///etc")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def setup_with(revision: str | None, weights: Any) -> Setup:
    model = Model("tiny", "hub", "org/tiny", "float32", "tokenizer", revision=revision)
    task = Task("toy", "hub", Hub("org/set", "test"))
    decode, measure = Decode("greedy", 0.0, 1.0, 0, 8, 0), Measure("quick", 8, 1, True, "vanilla")
    return Setup(model, task, decode, measure, {"eagle": {"weights": weights}})


def test_a_pin_stands_in_the_ids_of_the_cell_and_of_the_method() -> None:
    pins = Pins({"model": {"org/tiny": {"main": COMMIT}, "org/head": {"main": COMMIT}}, "dataset": {}})
    question = (Question("a", "", ("Hello?",)),)
    pinned = pins.pin(setup_with(None, "org/head"))
    assert pinned.model.revision == COMMIT
    assert pinned.methods["eagle"]["weights"] == {"kind": "hub", "id": "org/head", "revision": COMMIT}
    refuse_unpinned(pinned.model, pinned.methods, Path("results"))
    same = pins.pin(setup_with(COMMIT, {"kind": "hub", "id": "org/head", "revision": COMMIT}))
    moved = replace(same, model=replace(same.model, revision=COMMIT[::-1]))
    first, second, third = (cell_of(each, question) for each in (pinned, same, moved))
    assert (first.id, first.method_ids) == (second.id, second.method_ids)
    assert first.id != third.id
    # A commit of the YAML's own outranks the lock; a head of a folder is nobody's to pin.
    own = pins.pin(setup_with(COMMIT[::-1], {"kind": "folder", "id": "heads"}))
    assert own.model.revision == COMMIT[::-1]
    assert own.methods["eagle"]["weights"] == {"kind": "folder", "id": "heads"}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"model": {"a/b": {"main": "main"}}, "dataset": {}, "files": {}}', '{"model": 1}'],
    ids=["torn", "a list", "empty", "a branch", "a number"],
)
def test_a_damaged_lock_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DamagedRecordError, match=r"hub\.lock\.json is damaged"):
        Pins.read(tmp_path)
