"""The paper's grid: every combination composes, each table has the paper's cells, and ids are what they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig

import methods
from bench.plan import grid
from bench.plan.cells import Cell, Question, cell_of
from bench.plan.identity import method_id
from bench.plan.schema import Setup, Table
from bench.records import hardware
from bench.report import published
from methods.common.paths import CONF

pytestmark = pytest.mark.slow

ALL = sorted(methods._BUILT_IN)
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if path.stem != "local")
PAPER = [name for name in MODELS if name not in ("smollm2_135m", "vicuna33b")]
QUESTIONS = (Question("81", "writing", ("Who wrote Faust?", "And when?")),)
CELLS = {
    "table1": 48, "table2": 3, "table3": 2, "figure1": 4, "figure2": 7, "figure5": 2, "figure6": 1,
    "figure_cost": 48, "figure_depth": 48, "figure_split": 48, "aa": 6, "tree_sweep": 6,
}  # fmt: skip
Place = tuple[str, str, float]


def planned(*overrides: str) -> tuple[list[Setup], Table | None]:
    """What a command plans, without a question read."""
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        config = hydra.compose("config", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return grid.setups(config)[:2]


def cells(setups: Sequence[Setup]) -> dict[Place, Cell]:
    found = [cell_of(setup, QUESTIONS) for setup in setups]
    return {(cell.model.name, cell.task.name, cell.decode.temperature): cell for cell in found}


def printed(table: str) -> dict[Place, set[str]]:
    """The methods with a number in the paper, by cell. The column of means is no task."""
    found: dict[Place, set[str]] = {}
    for model, temperature, method, task, _ in published.numbers(table):
        if task != "mean":
            found.setdefault((model, task, temperature), set()).add(method)
    return found


@pytest.mark.parametrize(
    ("gpu", "bfloat16", "first"),
    [(True, False, "paper"), (False, True, "embedded"), (False, False, "embedded_float32")],
)
def test_auto_is_the_profile_that_suits_the_machine(
    gpu: bool, bfloat16: bool, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.records.hardware.has_gpu", lambda: gpu)
    monkeypatch.setattr("bench.records.hardware.has_fast_bfloat16", lambda: bfloat16)
    assert grid.profiles_here()[0] == first
    assert sorted(grid.profiles_here()) == ["embedded", "embedded_float32", "paper"]
    (setup, *_), _ = planned("table=figure2", "profile=auto")
    assert setup.model.dtype == {"paper": "float16", "embedded": "bfloat16", "embedded_float32": "float32"}[first]


@pytest.mark.parametrize("flags", ["avx2", "avx512f avx512_bf16"])
def test_a_cpu_tells_whether_it_multiplies_bfloat16(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Path, "read_text", lambda self, **_: f"processor : 0\nmodel name : A CPU\nflags : fpu {flags}\n"
    )
    assert hardware.has_fast_bfloat16() == ("bf16" in flags)


def test_trees_that_fit_a_profile_s_models_are_given_to_no_other() -> None:
    sizes = []
    for model in ("smollm2_135m", "vicuna7b"):
        (setup, *_), _ = planned("table=figure2", "profile=embedded", f"model={model}", "method=eagle2")
        assert setup.task.count == 3
        sizes.append([setup.methods["eagle2"][knob] for knob in ("total_tokens", "depth", "top_k", "draft_vocab")])
    assert sizes == [[6, 3, 3, 8192], [60, 6, 10, 0]]


def test_every_combination_of_model_method_task_and_decode_composes() -> None:
    setups, _ = planned("table=table1", "profile=paper", f"model=[{','.join(MODELS)}]", f"method=[{','.join(ALL)}]")
    assert len(setups) == len(MODELS) * 6 * 2
    for setup in setups:
        assert {*setup.methods, "vanilla"} == set(ALL)
    of_model: dict[str, Setup] = {setup.model.name: setup for setup in setups}
    for setup in of_model.values():
        for name, knobs in setup.methods.items():
            methods.configure(name, knobs)
    assert len({cell_of(setup, QUESTIONS).id for setup in setups}) == len(setups)


@pytest.mark.parametrize("table", sorted(path.stem for path in (CONF / "table").glob("*.yaml")))
def test_a_table_of_the_paper_s_profile_has_this_many_cells(table: str) -> None:
    setups, whole = planned(f"table={table}", "profile=paper")
    assert (len(setups), len(cells(setups))) == (CELLS[table], CELLS[table])
    assert whole is not None
    assert whole.name == table, "and is whole"
    assert table == "tree_sweep" or {(setup.measure.name, setup.task.source) for setup in setups} == {
        ("paper", "paper")
    }


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "figure1", "figure2"])
def test_its_cells_are_those_with_a_printed_number_and_each_such_method_can_run(table: str) -> None:
    expected = printed(table)
    found = cells(planned(f"table={table}", "profile=paper")[0])
    assert set(found) == set(expected)
    for place, names in expected.items():
        assert names <= {*found[place].methods, "vanilla"}, place


def test_a_method_without_published_weights_is_named_as_such() -> None:
    found = cells(planned("table=figure2", "profile=paper", "model=[vicuna33b," + ",".join(PAPER) + "]")[0])
    lacking = {model: set(cell.without_weights) for (model, _, _), cell in found.items()}
    nothing, no_heads = set[str](), {"medusa", "hydra"}
    assert lacking == {
        "vicuna7b": nothing, "vicuna13b": nothing, "vicuna33b": nothing,
        "llama2chat7b": {"sps", *no_heads}, "llama2chat13b": {"sps", *no_heads}, "llama2chat70b": no_heads,
        "llama3instruct8b": {"sps", *no_heads}, "llama3instruct70b": no_heads,
    }  # fmt: skip


def by_model(*overrides: str) -> dict[str, dict[str, dict[str, Any]]]:
    setups, _ = planned("table=figure2", "profile=paper", *overrides)
    return {setup.model.name: setup.methods for setup in setups}


def test_eagle_2_s_tree_follows_the_size_and_the_command_line_outranks_it() -> None:
    found = {model: knobs["eagle2"] for model, knobs in by_model().items()}
    assert {model: knobs["total_tokens"] for model, knobs in found.items()} == {
        "vicuna7b": 60, "llama2chat7b": 60, "llama3instruct8b": 60, "vicuna13b": 50, "llama2chat13b": 50,
        "llama2chat70b": 48, "llama3instruct70b": 48,
    }  # fmt: skip
    assert {(knobs["depth"], knobs["top_k"], knobs["draft_vocab"]) for knobs in found.values()} == {(6, 10, 0)}
    assert len({method_id("eagle2", knobs) for knobs in found.values()}) == 7, "each is another method"
    said = by_model("model=vicuna13b", "method=[eagle2]", "methods.eagle2.total_tokens=60")["vicuna13b"]["eagle2"]
    assert said == {**found["vicuna13b"], "total_tokens": 60}
    assert method_id("eagle2", said) != method_id("eagle2", found["vicuna13b"])


def test_vicuna_is_v1_3_and_llama_3_is_not_3_1() -> None:
    setups, _ = planned("table=figure2", "profile=paper", f"model=[{','.join(MODELS)}]")
    for setup in setups:
        named = [setup.model.id, *(str(knobs.get("weights") or "") for knobs in setup.methods.values())]
        assert not any("v1.5" in name or "3.1" in name for name in named)
        if setup.model.name.startswith("vicuna"):
            assert all("v1.3" in name for name in named if name and "68m" not in name)
    assert {setup.model.dtype for setup in setups if setup.model.kind == "hub"} == {"float16"}
    eos = {setup.model.name: setup.model.eos_tokens for setup in setups}
    assert [name for name, tokens in eos.items() if tokens == ["<|eot_id|>"]] == [
        "llama3instruct70b",
        "llama3instruct8b",
    ]


GOLDEN: dict[Place, tuple[str, str, str]] = {
    # place: the ids of the cell (questions as above, no revision resolved), of eagle2 and of pld
    ("vicuna7b", "mt_bench", 0.0): ("f844d7f4dfe1", "12318221fdfa", "021561b27fde"),
    ("llama2chat13b", "gsm8k", 1.0): ("8dc3ccbab1ac", "f996e3b3cedc", "021561b27fde"),
    ("llama3instruct70b", "mt_bench", 0.0): ("a6e27caf565e", "d438ace2b94d", "021561b27fde"),
}


@pytest.mark.parametrize("place", GOLDEN)
def test_ids_are_golden_since_they_must_be_equal_on_every_machine_and_python(place: Place) -> None:
    model, task, temperature = place
    decode = "greedy" if temperature == 0 else "t1"
    setups, _ = planned("table=table1", "profile=paper", f"model={model}", f"task={task}", f"decode={decode}")
    cell = cells(setups)[place]
    assert (cell.id, cell.method_ids["eagle2"], cell.method_ids["pld"]) == GOLDEN[place]
