"""Configuration: every option composes and freezes; every mistake is one line, exit code 2, and says what to type."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

import bench.cli.outside_methods
import methods
from bench.plan.config import setup_of
from bench.plan.identity import digest, method_id
from bench.plan.schema import Decode, Measure, Model, Profile, Table
from methods.common.errors import ConfigError
from methods.common.freeze import freeze
from methods.common.paths import CONF
from tests.support.commands import ROOT, Command, environment, in_subprocess

FILES = sorted(path for path in CONF.glob("*/*.yaml"))
DRY = "plan.dry_run=true"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def options(group: str) -> list[str]:
    return [path.stem for path in FILES if path.parent.name == group]


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        return hydra.compose("config", overrides=list(overrides))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["model", "task", "decode", "measure"])
def test_every_option_of_a_cell_composes_and_freezes(group: str) -> None:
    assert options(group)
    for option in options(group):
        where = ["model.id=."] if option == "local" else []
        frozen = getattr(setup_of(compose(f"{group}={option}", *where)), group)
        assert frozen.name == option
        with pytest.raises(FrozenInstanceError):
            frozen.name = "other"


@pytest.mark.parametrize("name", options("method"))
def test_every_method_option_names_exactly_the_settings_of_its_dataclass(name: str) -> None:
    knobs: Any = OmegaConf.to_container(compose(f"method=[{name}]").methods[name], resolve=True)
    method, config = methods.configure(name, knobs)
    assert list(knobs) == [field.name for field in fields(method.Config)]
    with pytest.raises(FrozenInstanceError):
        config.anything = 1


def test_every_registered_method_of_this_repository_has_an_option() -> None:
    assert sorted(methods._BUILT_IN) == options("method")


@pytest.mark.parametrize("name", options("table"))
def test_every_table_is_a_grid_of_options_that_exist(name: str) -> None:
    table = freeze(Table, compose(f"table={name}").table, "table")
    assert table.name == name
    assert set(table.tasks) <= set(options("task"))
    assert set(table.decodes) <= set(options("decode"))
    assert table.methods == "all" or set(table.methods) <= set(options("method"))


@pytest.mark.parametrize("name", options("profile"))
def test_every_profile_names_models_that_exist_and_overrides_that_compose(name: str) -> None:
    profile = freeze(Profile, compose(f"profile={name}").profile, "profile")
    assert profile.name == name
    assert set(profile.models) <= set(options("model"))
    setup_of(compose(f"method=[{','.join(options('method'))}]", *profile.overrides))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_yaml_is_data_without_code_secrets_or_paths_of_one_machine(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#"), "the first line says where the values come from"
    assert not re.search(r"_target_|_partial_|oc\.(env|decode|create)|\$\{eval|\beval\(|!!python", text)
    assert not re.search(r"hf_[A-Za-z0-9]{8,}|token:|password:|api_?key:", text, re.IGNORECASE)
    assert not re.search(r"""(^|[\s"'=:\[])(~?/\w|[A-Z]:\\)""", text, re.MULTILINE), "an absolute path"


MISTAKES = {
    # what is typed: what the one line must contain
    "method=pdl": "unknown method 'pdl'; did you mean 'pld'? known:",
    "model=smollm2_135": "unknown model 'smollm2_135'; did you mean 'smollm2_135m'?",
    "task=gsm8": "unknown task 'gsm8'; did you mean 'gsm8k'?",
    "decode=gredy": "unknown decode 'gredy'; did you mean 'greedy'?",
    "measure=quik": "unknown measure 'quik'; did you mean 'quick'?",
    "profile=embeded": "unknown profile 'embeded'; did you mean 'embedded'?",
    "+task.shuffle=true": "settings can be changed, not added",
    "table=tabel1": "unknown table 'tabel1'; did you mean 'table1'?",
    "methd=pld": "unknown setting 'methd'; did you mean 'method",
    "taks.count=3": "unknown setting 'taks.count'",
    "task.cuont=3": "unknown setting 'task.cuont'; did you mean 'count'? known: count, hub,",
    "task.hub.splt=test": "unknown setting 'task.hub.splt'; did you mean 'split'?",
    "plan.dryrun=true": "unknown setting 'plan.dryrun'; did you mean 'dry_run'?",
    "methods.pld.max_ngrm=2": "unknown setting 'methods.pld.max_ngrm'; did you mean 'max_ngram'?",
    "+decode.sead=1": "decode.sead",
    "decode.temperature=hot": "decode.temperature: Value 'hot'",
    "decode.temperature=-1": "decode.temperature=-1.0 must lie in [0, 100]; 0 is greedy",
    "decode.temperature=nan": "decode.temperature=nan must lie in [0, 100]",
    "decode.top_p=0": "decode.top_p=0.0 must lie in (0, 1]",
    "decode.top_p=1.5": "decode.top_p=1.5 must lie in (0, 1]",
    "decode.top_k=-1": "decode.top_k=-1 must be 0 (off) or more",
    "decode.max_new_tokens=0": "decode.max_new_tokens=0 must be 1 or more",
    "decode.max_new_tokens=1.5": "decode.max_new_tokens: Value '1.5'",
    "decode.seed=null": "decode.seed",
    "measure.repeats=0": "measure.repeats 1 or more",
    "measure.warmup_tokens=-1": "measure.warmup_tokens must be 0 or more",
    "measure.history=slef": "measure.history=slef is not known; did you mean 'self'?",
    "measure.audit=maybe": "measure.audit: Value 'maybe'",
    "model.kind=floder": "model.kind=floder is not known; did you mean 'folder'?",
    "model.dtype=fp16": "model.dtype=fp16 is not known; known: float32, bfloat16, float16, float64",
    "model.runtime=fussed": "model.runtime=fussed is not known; did you mean 'fused'?",
    "model.runtime=fused model.attention=eager": "model.attention=eager works only with model.runtime=hf",
    "model.runtime=fused measure=paper": "measure=paper measures the stock module, as the paper did",
    "model.attention=flash": "model.attention=flash is not known; known: sdpa, eager",
    "model.eos_tokens=x": "model.eos_tokens",
    "task.count=0": "task.count=0 must be 1 or more, or null for all questions",
    "task.source=hubb": "task.source=hubb is not known; did you mean 'hub'?",
    "task.source=file": "task.source=file needs task.path=FILE.jsonl",
    "task.path=missing.jsonl": "task.path=missing.jsonl cannot be read: No such file",
    "method=hydra model=llama2chat7b": "hydra has no weights for model=llama2chat7b; give ",
    "model=local": "model.id must be given here: add model.id=...",
    "task.name=gsm9k": "task.name=gsm9k has no built-in questions; give task.path=FILE.jsonl",
    # Numbers out of range, of another type, or none.
    "decode.temperature=inf": "decode.temperature=inf must lie in [0, 100]",
    "decode.temperature=null": "decode.temperature",
    "decode.temperature=[1]": "decode.temperature",
    "decode.top_p=nan": "decode.top_p=nan must lie in (0, 1]",
    "decode.top_p=-0.1": "decode.top_p=-0.1 must lie in (0, 1]",
    "decode.top_k=1.5": "decode.top_k: Value '1.5'",
    "decode.max_new_tokens=-3": "decode.max_new_tokens=-3 must be 1 or more",
    "decode.max_new_tokens=many": "decode.max_new_tokens: Value 'many'",
    "decode.seed=1.5": "decode.seed: Value '1.5'",
    "measure.repeats=x": "measure.repeats: Value 'x'",
    "measure.trace=-1": "measure.trace=-1 must be 0 (off) or more",
    "measure.questions=papr": "measure.questions=papr is not known; did you mean 'paper'?",
    "measure.name=null": "measure.name",
    "model.context=1": "model.context=1 must be 2 or more tokens",
    "model.context=x": "model.context: Value 'x'",
    "model.id=null": "model.id",
    "model.dtype=null": "model.dtype",
    "model.kind=null": "model.kind",
    "model.template=chatml": "model.template=chatml is not known; choose tokenizer, vicuna, llama2, llama3",
    "model.weights=3": "model.weights",
    "task.count=-1": "task.count=-1 must be 1 or more",
    "task.count=all": "task.count: Value 'all'",
    "task.count=[1]": "task.count",
    "task.hub=null": "task.hub",
    "task.source=hub task.hub.id=": "task.hub.id is empty",
    "task.path=/dev/zero": "task.path=/dev/zero is a device or a pipe; give a file",
    "task.path=.": "cannot be read: Is a directory",
    "plan.gpu=h1000": "h1000",
    "plan.gpu=h200 plan.gpus=0": "plan.gpus=0 must be 1 or more",
    "plan.status=perhaps": "plan.status: Value 'perhaps'",
    "launcher=slrm": "unknown launcher 'slrm'; did you mean 'slurm'?",
    "launcher.name=slrm": "launcher.name=slrm is not known; did you mean 'slurm'?",
    "launcher=slurm launcher.minutes=0": "launcher.minutes=0 must be 1 or more",
    "launcher.parallel=x": "launcher.parallel",
    "report.estimator=papper": "report.estimator=papper is not known; did you mean 'paper'?",
    "results=": "results= must be a folder",
    "results=null": "results=None must be a folder",
    "results=[a]": "must be a folder",
    # Groups, lists and grids.
    "decode=null": "decode=null names no option of decode; choose from greedy, t1",
    "model=3": "model=3 names no option of model; choose from",
    "decode=[greedy,null]": "names no option of decode; choose from greedy, t1",
    "method=[]": "method=[] names no option of method; choose from",
    "method=": "method= names no option of method; choose from",
    "task=../task/gsm8k": "task=../task/gsm8k names no option of task; choose from",
    "method=[pld,pdl]": "unknown method 'pdl'; did you mean 'pld'?",
    "methods=null": "methods=None must hold methods; choose them with method=[pld,eagle2]",
    "methods=3": "methods=3 must hold methods",
    "methods.pld=3": "methods.pld=3 must hold settings; give one by its name",
    "methods.pld=null": "methods.pld=None must hold settings",
    "table=table1 task=gsm8": "unknown task 'gsm8'; did you mean 'gsm8k'?",
    "table=table1 model=smolm": "unknown model 'smolm'",
    "table=table1 decode=gredy": "unknown decode 'gredy'; did you mean 'greedy'?",
    "table=table1 table.methods=[pdl]": "unknown method 'pdl'; did you mean 'pld'?",
    "table=table1 table.tasks=[]": "names no model, no decoding or no task: no cell",
    "table=table1 profile=embedded profile.models=[]": "names no model, no decoding or no task: no cell",
    "table=table1 profile=embedded profile.overrides=['decode.temperature=-1']": "decode.temperature=-1.0 must lie in",
    "table=table1 profile=embedded profile.overrides=['foo=1']": "unknown setting 'foo'",
    "table=table1 profile=embedded profile.overrides=[foo=1]": "quote it twice: 'key=\"a=b, c\"'",
    # Weights of no known form.
    "method=eagle2 methods.eagle2.weights=": "must be a path, a hub id, or {kind, id, revision}",
    "method=eagle2 methods.eagle2.weights=3": "methods.eagle2.weights=3 must be a path, a hub id,",
    "method=eagle2 methods.eagle2.weights=[a]": "must be a path, a hub id,",
    "method=eagle2 methods.eagle2.weights={kind:folder}": "must be a path, a hub id,",
    "method=eagle2 methods.eagle2.weights={kind:zip,id:x}": "with kind folder, hub, shipped",
    # What is no setting at all.
    "=3": "'=3' is not a setting; settings are given as key=value",
    "task..count=3": "task..count",
    "task.count": "task.count",
    "--dryrun": "unknown flag --dryrun; settings are given as key=value, such as plan.dry_run=true",
    "--muiltrun": "unknown flag --muiltrun; did you mean --multirun?",
    "~decode.seed": "settings can be changed, not added or removed",
    "model.id=${nowhere}": "nowhere",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_with_what_to_type_and_exits_2(typed: str, command: Command) -> None:
    result = command(*typed.split(), DRY)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert MISTAKES[typed] in result.err


@pytest.mark.slow
@pytest.mark.parametrize("typed", [pytest.param(("methods.pld.max_ngram=0",), id="range"),
                                   pytest.param(("methods.pld.num_draft=2.5",), id="type"),
                                   pytest.param(("methods.pld.variant=hff",), id="choice"),
                                   pytest.param(("model.kind=folder", "model.id=nowhere"), id="model")])  # fmt: skip
def test_what_only_a_run_can_refuse_is_also_one_line_before_any_block(
    typed: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    result = command(*typed, f"results={tmp_path}")
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if not line.startswith("profile ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {typed[-1].split('=')[0].rpartition('.')[0]}.")
    assert not list(tmp_path.rglob("blocks.jsonl"))


@pytest.mark.slow
def test_users_see_the_same_line_in_a_process_of_their_own(tmp_path: Path) -> None:
    for typed in ("method=pdl", "taks=gsm8k", "task.cuont=3", "methods.pld.max_ngrm=2", "decode.top_p=2", "tabel=x"):
        result = in_subprocess(typed, DRY, cwd=tmp_path)
        assert result.code == 2, typed
        assert result.out == ""
        assert re.fullmatch(r"error: .*(did you mean|must lie in).*\n", result.err), result.err
    assert not list(tmp_path.iterdir()), "a wrong request leaves nothing behind"


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["table.tasks=[gsm8k]", "table.decodes=[t1]"])
def test_a_setting_of_a_table_can_be_overridden(typed: str, command: Command) -> None:
    result = command("table=table1", typed, DRY)
    assert result.code == 0, result.err
    assert 0 < result.last_line["cells"] < 12


@pytest.mark.parametrize("typed", ["task=[gsm8k,nq]", "decode=[greedy,t1]"])
def test_several_options_where_one_is_meant_are_refused_or_all_run_never_silently_one(
    typed: str, command: Command
) -> None:
    result = command(typed, DRY)
    assert result.code == 2 or result.last_line["cells"] == 2


@pytest.mark.slow
def test_a_method_of_another_package_is_selected_like_a_built_in_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in = EntryPoint("repeat", "draftbench_repeat:Repeat", "draftbench.methods")
    for module in (methods, bench.cli.outside_methods):
        monkeypatch.setattr(module, "entry_points", lambda group: [plug_in])
    monkeypatch.syspath_prepend(ROOT / "tests" / "outside_package")
    assert methods.names()[-1] == "repeat"
    assert "repeat" in command("table=table1", DRY).out
    assert "  repeat, pld  " in command("method=[repeat,pld]", DRY).out
    assert "did you mean 'repeat'?" in command("method=repaet", DRY).err


def test_an_error_names_its_setting_even_in_a_nested_group() -> None:
    with pytest.raises(ConfigError, match=r"^decode\.top_k: .*'many'"):
        freeze(Decode, {"top_k": "many"}, "decode")
    with pytest.raises(ConfigError, match=r"^measure\.waarmup"):
        freeze(Measure, {"waarmup": 3}, "measure")
    with pytest.raises(ConfigError, match=r"^model\.dtype=int8 is not known"):
        freeze(Model, {"name": "m", "kind": "hub", "id": "i", "dtype": "int8", "template": "tokenizer"}, "model")


def test_a_digest_ignores_the_order_of_keys_and_nothing_else() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})
    assert digest([1, 2]) != digest([2, 1])
    assert method_id("pld", {"n": 1}) != method_id("sps", {"n": 1})
    assert re.fullmatch(r"[0-9a-f]{12}", digest({}))


@pytest.mark.slow
def test_a_refusal_imports_no_torch(tmp_path: Path) -> None:
    """One process for every third: what each of them would import, they import together."""
    typed = list(MISTAKES)[::3]
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None  # an import of either now raises\n"
        "import bench.run\n"
        f"for typed in {typed!r}:\n"
        f"    sys.argv = ['bench.run', *typed.split(), {DRY!r}]\n"
        "    try:\n"
        "        bench.run.main()\n"
        "    except SystemExit as stopped:\n"
        "        assert stopped.code == 2, typed\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(typed)
    assert all(line.startswith("error: ") for line in lines)
    assert not list(tmp_path.iterdir()), "a wrong request leaves nothing behind"
