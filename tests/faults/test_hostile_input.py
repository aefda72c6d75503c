"""A stranger's models, data, settings and results: nothing of theirs runs, nothing is written elsewhere, no secret.

Every payload makes a folder named ``touched`` if it is executed. Pickled heads are in ``test_unsafe_weights``, results
in ``test_hostile_results``, the page in ``test_page_browser``.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import methods
from bench.measure import prompts
from bench.plan import questions
from bench.plan.schema import Hub, Task
from methods.common.errors import ConfigError
from methods.common.redact import redact
from methods.decode.target import Target
from methods.loading.model import Source, load_model, outline
from methods.pld import PLD
from tests.support.commands import Command, tiny_settings, write_questions
from tests.support.heads import write_eagle
from tests.support.models import tiny_llama
from tests.support.pickles import Touches, plain

TOKEN = "hf_" + "s3cretS3cret" * 2
CODE = "import os\nos.mkdir({path!r})\n"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


@pytest.fixture
def model(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


def untouched(tmp_path: Path) -> bool:
    return not list(tmp_path.rglob("touched"))


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# The command line.

ARGUMENTS = {
    "a package": "+method@_global_=../../evil",
    "Hydra's node as a package": "+method@hydra.run=../../evil",
    "a callback": "+hydra.callbacks.evil._target_=os.mkdir",
    "a launcher's class": "hydra.launcher._target_=os.mkdir",
    "a logging handler": "+hydra.job_logging.handlers.evil.()=os.mkdir",
    "another logging config": "hydra/job_logging=default",
    "a run folder elsewhere": "hydra.run.dir={path}",
    "a copy of the config": "hydra.output_subdir=touched",
    "a change of folder": "hydra.job.chdir=true",
    "a sweeper": "hydra/sweeper=basic",
    "more places for configs": "hydra.searchpath=[file:///tmp]",
    "a class in a group": "+model._target_=os.mkdir",
    "a class in a method": "+methods.pld._target_=os.mkdir",
    "a class over a setting": "++decode._target_=os.mkdir",
    "an environment variable": "model.name=${{oc.env:HF_TOKEN}}",
    "an environment variable in a list": "model.eos_tokens=[${{oc.env:HF_TOKEN}}]",
    "an evaluation": "decode.top_k=${{oc.decode:1}}",
    "a pickled job": "--experimental-rerun={path}",
    "a folder of configs": "--config-dir={path}",
    "another config": "--config-path={path}",
    "an option elsewhere": "model=../../{path}",
    "a results folder by name": "model.name=../../touched",
    "a table elsewhere": "table.name=../touched",
    "a task elsewhere": "task.name=/touched",
    "a formula": "model.name=@SUM(A1)",
    "a row that ends": "model.name='a | b'",
    "weights out of the package": "methods.eagle2.weights={{kind:shipped,id:../../touched}}",
    "a token as a setting": f"model.id={TOKEN}",
    "a password in a URL": "model.id=https://me:passw0rd@host/model",
    "a key by its name": "launcher.setup=['export API_KEY=abc']",
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_what_is_no_setting_is_refused_before_hydra_reads_it(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    method = (
        ["method=eagle2"] if "eagle2" in ARGUMENTS[kind] else ["table=table1"] if "table." in ARGUMENTS[kind] else []
    )
    for more in ([], ["-m"]):
        result = command(ARGUMENTS[kind].format(path=tmp_path / "touched"), *method, *more)
        assert (result.code, result.out) == (2, "")
        assert len(result.err.splitlines()) == 1
        for secret in (TOKEN, "passw0rd", "=abc"):
            assert secret not in result.err
    files = {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*") if one.is_file()}
    assert files <= {"results/multirun/multirun.yaml"}, "Hydra's own record of a sweep"
    assert untouched(tmp_path)


def test_an_option_has_one_place(command: Command) -> None:
    result = command("+method@model=pld")
    assert result.code == 2
    assert result.err == "error: +method@model=pld: where an option's settings go is fixed here; write method=OPTION\n"


def test_training_refuses_the_same(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in (
        "a callback",
        "a run folder elsewhere",
        "an environment variable",
        "a pickled job",
        "a token as a setting",
    ):
        result = command(ARGUMENTS[kind].format(path=tmp_path / "touched"), "method=eagle", module="methods.train")
        assert result.code == 2
        assert len(result.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", ["pld", "eagle2", "medusa"])
def test_a_class_among_a_method_s_settings_is_a_setting_nobody_knows(group: str) -> None:
    with pytest.raises(ConfigError, match=r"^_target_ is not a setting"):
        methods.configure(group, {"_target_": "os.mkdir"})


# Models and tokenizers.

AUTO_MAP = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


@pytest.mark.parametrize("model_type", ["llama", "evil"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_that_a_model_brings_never_runs(model: Path, tmp_path: Path, file: str, model_type: str) -> None:
    (model / "evil.py").write_text(CODE.format(path=str(tmp_path / "touched")))
    changed(model / file, auto_map=AUTO_MAP)
    changed(model / "config.json", model_type=model_type)
    if file == "tokenizer_config.json":
        changed(model / file, tokenizer_class="Evil")
    known = (file, model_type) == ("config.json", "llama")  # then transformers' own code reads it
    with nullcontext() if known else pytest.raises(ConfigError, match=r"^[^\n]*$"):
        load_model(Source("folder", str(model)), device="cpu")
    assert untouched(tmp_path)


TEMPLATES = {
    "reaches for Python": "{{ ().__class__.__base__.__subclasses__() }}",
    "imports": "{{ cycler.__init__.__globals__.os.mkdir('touched') }}",
    "does not parse": "{% for %}",
    "asks for what is not there": "{{ messages.nothing.at_all }}",
    "raises": "{{ raise_exception('no') }}",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_chat_template_stays_in_its_sandbox_and_fails_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATES[kind]
    with pytest.raises(ConfigError, match="this tokenizer's chat template fails: ") as refused:
        prompts.render(tokenizer, "tokenizer", ["Hello?"], [])
    assert "\n" not in str(refused.value)
    assert untouched(tmp_path)


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "pytorch_model.bin"])
def test_a_pickle_by_any_name_is_no_model(model: Path, tmp_path: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    plain(Touches(tmp_path / "touched"), model / name)
    with pytest.raises(ConfigError):
        load_model(Source("folder", str(model)), device="cpu")
    assert untouched(tmp_path)


@pytest.mark.parametrize("sha256", [None, "0" * 64], ids=["unchecked", "of another file"])
def test_a_wheel_whose_gguf_is_a_pickle_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sha256: str | None
) -> None:
    wheel = tmp_path / "evil_wheel-1.0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: evil-wheel\nVersion: 1.0\n")
    (wheel / "RECORD").write_text("model.gguf,,\n")
    plain(Touches(tmp_path / "touched"), tmp_path / "model.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DRAFTBENCH_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError) as refused:
        load_model(Source("wheel", "evil-wheel", "1.0", "model.gguf", sha256))
    assert "\n" not in str(refused.value)
    assert untouched(tmp_path)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def safetensors(header: bytes, length: int | None = None, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def described(**facts: Any) -> bytes:
    return json.dumps({"fc.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | facts}).encode()


HEADERS = {
    "a header longer than the disk": safetensors(b"{}", 2**63),
    "a header longer than the file": safetensors(b"{}", 10**9),
    "a header of no length": safetensors(b""),
    "a header that is no JSON": safetensors(b"{" * 64),
    "brackets without end": safetensors(b'{"a":' * 200_000),
    "a list": safetensors(b"[]"),
    "no body": safetensors(described()),
    "offsets past the end": safetensors(described(data_offsets=[0, 2**40]), body=b"\0" * 8),
    "offsets before the start": safetensors(described(data_offsets=[-8, 0]), body=b"\0" * 8),
    "offsets backwards": safetensors(described(data_offsets=[8, 0]), body=b"\0" * 8),
    "a shape larger than its bytes": safetensors(described(shape=[2**40, 2**40]), body=b"\0" * 8),
    "a negative shape": safetensors(described(shape=[-2]), body=b"\0" * 8),
    "a type nobody knows": safetensors(described(dtype="PICKLE"), body=b"\0" * 8),
    "a zip of pickles": b"PK\x03\x04" + b"\0" * 60,
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=1, vocab_size=12))


@pytest.mark.parametrize("kind", HEADERS)
def test_a_malformed_header_is_one_line(model: Path, target: Target, tmp_path: Path, kind: str) -> None:
    head = write_eagle(tmp_path / "head", target)
    (head / "pytorch_model.bin").unlink()
    for folder in (head, model):
        (folder / "model.safetensors").write_bytes(HEADERS[kind])
    for load in (
        lambda: methods.load("eagle2", {"weights": str(head)}, target),
        lambda: outline(Source("folder", str(model))),
    ):
        with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read as weights: ") as refused:
            load()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", ["../stolen.safetensors", "/etc/passwd", "sub/stolen.safetensors"])
def test_an_index_reads_no_file_of_another_folder(model: Path, tmp_path: Path, file: str) -> None:
    (model / "sub").mkdir()
    for place in (tmp_path, model / "sub"):
        shutil.copy(model / "model.safetensors", place / "stolen.safetensors")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(ConfigError, match="must name files of its own folder"):
        load_model(Source("folder", str(model)), device="cpu")


# Questions and data sets.


@pytest.mark.parametrize("script", ["set.py", "dataset.py", "test.py"])
def test_a_data_set_s_script_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / script).write_text(CODE.format(path=str(tmp_path / "touched")))
    (folder / "test.jsonl").write_text('{"turns": ["Hello?"]}\n')
    with suppress(ConfigError):  # whether it reads the rows beside the script is its own affair
        questions.load(Task("toy", "hub", Hub(str(folder), "test", turns="turns")))
    assert untouched(tmp_path)


def test_a_file_that_is_no_question_file_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{TOKEN}\n")
    (tmp_path / "questions.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError) as refused:
        questions.read_jsonl(tmp_path / "questions.jsonl")
    assert TOKEN not in str(refused.value)


class Telling(PLD):
    """Fails with a secret in its message."""

    def propose(self, context: Any) -> Any:
        raise IndexError(f"GET https://me:passw0rd@host/x?token={TOKEN} with {os.environ['WANDB_API_KEY']}")


def test_a_run_writes_nothing_outside_its_results_and_no_secret_anywhere(
    model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that are paths, text that is markup; credentials in the environment, and in an error's message."""
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    ids = ["../../../touched", "/tmp/touched", "~/touched", "a\0b", '"><script>', "=cmd|' /C calc'!A0", r"\input{x}"]
    path = write_questions(tmp_path / "toy.jsonl", [["Hello?"] for _ in ids])
    rows = [
        json.loads(line) | {"question_id": one} for one, line in zip(ids, path.read_text().splitlines(), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = {one for one in tmp_path.rglob("*") if here not in one.parents}
    settings = [
        *tiny_settings(model, here / "results"),
        "task.name=toy",
        f"task.path={path}",
        "decode.max_new_tokens=4",
    ]
    assert command("method=[pld]", *settings, "task.count=null", "measure.trace=7").code == 0
    assert command("method=[pld]", *settings, "task.count=null", module="bench.report").code == 0
    with monkeypatch.context() as patch:
        patch.setitem(methods._BUILT_IN, "pld", methods.Row(f"{__name__}:Telling"))
        failed = command("method=[pld]", *settings, "task.count=null", "decode.seed=1")
    assert failed.code == 1
    assert [one.name for one in here.iterdir()] == ["results"]
    assert {one for one in tmp_path.rglob("*") if here not in one.parents} == before
    written = [one for one in here.rglob("*") if one.is_file()]
    assert any(one.name == "events.jsonl" for one in written)
    for one in written:
        data = one.read_bytes()
        for secret in (TOKEN, "passw0rd", "0123456789abcdef0123"):
            assert secret.encode() not in data, one


def test_a_sweep_leaves_its_own_record_inside_the_results(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("-m", "task=gsm8k,nq", "plan.dry_run=true").code == 0
    assert {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*") if one.is_file()} <= {
        "results/multirun/multirun.yaml"
    }


def test_what_is_hidden_is_a_credential_and_nothing_else() -> None:
    for kept in ("decode.max_new_tokens=16", "model.eos_tokens=[</s>]", "profile=embedded", "https://host/a/b?c=d",
                 "results=/scratch/hf_results_2024", "hf_raise_for_status(response)"):  # fmt: skip
        assert redact(kept) == kept
    for secret in (TOKEN, "Authorization: Bearer abc.def", "HF_TOKEN=abc", "ghp_" + "a" * 36,
                   "sk-" + "a" * 24, "AKIA" + "A" * 16, "password: hunter2", "https://u:p@host",
                   "{'token': 'abc'}"):  # fmt: skip
        assert "<redacted>" in redact(secret)


def test_of_two_credentials_that_begin_alike_neither_is_left_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "wxyz-0123456789")
    monkeypatch.setenv("B_KEY", "wxyz-0123456789-and-more")
    assert redact("sent wxyz-0123456789-and-more") == "sent <redacted>"
