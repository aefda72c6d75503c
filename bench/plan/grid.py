"""From the command line to cells: the profile's sizes, then the user's overrides, then one cell or a table's grid.

Each option of a group is composed once and the grid is their product, so a table of thousands of cells plans quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import methods
from bench.plan import questions as tasks
from bench.plan import templates
from bench.plan.cells import VANILLA, Cell, Question, cell_of
from bench.plan.config import knobs_of, setup_of
from bench.plan.hub_lock import Pins
from bench.plan.identity import registered
from bench.plan.schema import Decode, Profile, Setup, Table, Task
from bench.records import hardware
from methods.common.errors import ConfigError
from methods.common.freeze import freeze
from methods.common.paths import CONF

_GROUPS = ("model", "decode", "task", "method")
_NO_SETUP = ("table", "profile", "plan", "launcher")
"""What says which cells and where they run, not what one is."""


def resolve(config: DictConfig, auto: str | None = None) -> tuple[list[Cell], Table | None, Profile]:
    """``setups`` with their questions: the cells a command means."""
    wanted, table, profile = setups(config, auto)
    questions: dict[Task, tuple[Question, ...]] = {}
    cells = []
    for setup in wanted:
        if setup.task not in questions:
            questions[setup.task] = tasks.load(setup.task)
        cell = cell_of(setup, questions[setup.task])
        if table is None and cell.without_weights:
            name = cell.without_weights[0]
            raise ConfigError(
                f"{name} has no weights for model={cell.model.name}; give methods.{name}.weights=FOLDER_OR_HUB_ID, "
                f"or choose a method that needs none"
            )
        cells.append(cell)
    return cells, table, profile


def setups(config: DictConfig, auto: str | None = None) -> tuple[list[Setup], Table | None, Profile]:
    """What a command means, in the order it will run; the table it belongs to, if any; the profile in force.

    Reads no questions, so it answers before they are fetched. ``auto`` is what ``profile=auto`` stands for; None picks
    by this machine. A table that the command narrows is named ``<name>-partial``, so that it never takes the place of
    the whole one.
    """
    given = list(HydraConfig.get().overrides.task)
    _refuse_additions(given)
    profile = _profile(config, given, auto)
    table = freeze(Table, config.table, "table") if config.get("table") else None
    base = [override for override in given if _key(override).split(".")[0] not in _NO_SETUP]
    if table is None:
        _refuse_lists(base)
        composed = knobs_of(config)
        chosen = composed if _named(base, "method") else list(config.compare or ()) or composed
        model = HydraConfig.get().runtime.choices["model"]
        wanted = [_compose(_sizes(profile, model), base, ",".join(registered(str(name)) for name in chosen))]
    else:
        wanted, whole = _grid(profile, table, base)
        table = table if whole else replace(table, name=f"{table.name}-partial")
    return wanted, table, profile


def _grid(profile: Profile, table: Table, given: list[str]) -> tuple[list[Setup], bool]:
    """models x decodes x tasks of a table, and whether that is all of it: a group named by the user may narrow it."""
    named = {_key(override): override.partition("=")[2] for override in given}
    wanted = _with_yaml(methods.names()) if table.methods == "all" else list(table.methods)
    chosen = named.get("method") or f"[{','.join(name for name in wanted if name != VANILLA)}]"
    rest = [override for override in given if _key(override) not in _GROUPS]
    fitted = [*table.overrides, *profile.by_table.get(table.name, [])]
    full = {
        "model": profile.models_by_table.get(table.name, profile.models),
        "decode": table.decodes,
        "task": table.tasks,
        "method": wanted,
    }
    whole = all(set(every) - {VANILLA} <= set(_narrow(named, group, every)) for group, every in full.items())

    general = [override for override in rest if not override.startswith("methods.")]

    @cache
    def options(sizes: tuple[str, ...]) -> tuple[list[Decode], list[Task]]:
        """Decodes and tasks under a profile's sizes, composed once for all models that have the same ones."""
        decodes = [
            _compose(sizes, [*general, f"decode={name}"], "") for name in _narrow(named, "decode", table.decodes)
        ]
        of_task = [_compose(sizes, [*general, f"task={name}"], "") for name in _narrow(named, "task", table.tasks)]
        return [setup.decode for setup in decodes], [setup.task for setup in of_task]

    found = []
    for model in _narrow(named, "model", full["model"]):
        sizes = (*_sizes(profile, model), *fitted)
        setup = _compose(sizes, [*rest, f"model={model}"], chosen)
        knobs = _with_variants(setup.methods, table.variants)
        decodes, of_task = options(sizes)
        found += [Setup(setup.model, task, decode, setup.measure, knobs) for decode in decodes for task in of_task]
    if not found:
        raise ConfigError(f"table={table.name} with these settings names no model, no decoding or no task: no cell")
    return found, whole


def _with_variants(chosen: dict[str, Any], variants: dict[str, Any]) -> dict[str, Any]:
    """The chosen methods with a table's further rows, each its method's settings and what it changes.

    A method listed among the variants itself stands where it is listed.
    """
    rows = {name: knobs for name, knobs in chosen.items() if name not in variants}
    for label, changes in variants.items():
        name = registered(label)
        if name in chosen or name == VANILLA:
            rows[label] = {**chosen.get(name, {}), **(changes or {})}
    return rows


def _sizes(profile: Profile, model: str) -> list[str]:
    """The profile's overrides for a model, its own or another."""
    return [*profile.overrides, *(profile.for_models if model in profile.models else [])]


def _compose(sizes: Sequence[str], given: Sequence[str], chosen: str) -> Setup:
    """Compose one configuration: the profile's and the table's sizes where the user says nothing, then the user's."""
    selected = [name.strip() for name in chosen.strip("[]").split(",") if name.strip()]
    said = {_key(override) for override in given}
    overrides = [f"method=[{','.join(selected)}]"]
    for override in {_key(each): each for each in sizes}.values():
        key = _key(override)
        of_method = key.split(".")[1] if key.startswith("methods.") else None
        if key not in said and (of_method is None or of_method in selected):
            overrides.append(override)
    overrides += [override for override in given if _key(override) != "method"]
    composed = hydra.compose("config", overrides=overrides)
    setup = setup_of(composed)
    templates.require_known(setup.model.template)
    return Pins.read(Path(str(composed.results)).expanduser()).pin(setup)


def profiles_here() -> list[str]:
    """The profiles that ``profile=auto`` may stand for, the one that suits this machine first."""
    on_cpu = ["embedded", "embedded_float32"] if hardware.has_fast_bfloat16() else ["embedded_float32", "embedded"]
    return ["paper", *on_cpu] if hardware.has_gpu() else [*on_cpu, "paper"]


def _profile(config: DictConfig, given: Sequence[str], auto: str | None) -> Profile:
    """The profile; ``auto`` is picked by what the machine has, and what the user set on top of it stays set."""
    if config.profile.name != "auto":
        return freeze(Profile, config.profile, "profile")
    picked = auto or profiles_here()[0]
    said = OmegaConf.from_dotlist([override for override in given if override.startswith("profile.")])
    return freeze(
        Profile,
        OmegaConf.merge(OmegaConf.load(CONF / "profile" / f"{picked}.yaml"), said.get("profile", {})),
        "profile",
    )


def _refuse_additions(given: Sequence[str]) -> None:
    """Hydra lets ``+key=value`` add settings that nothing reads."""
    for override in given:
        if override.startswith(("+", "~")):
            raise ConfigError(
                f"{override}: settings can be changed, not added or removed; see python -m bench.run --help"
            )


def _refuse_lists(given: Sequence[str]) -> None:
    """Without a table there is one cell; of a list Hydra would silently take the last."""
    for override in given:
        key, _, value = override.partition("=")
        if key in ("model", "task", "decode", "measure") and "," in value:
            raise ConfigError(f"{override} names several; run table=table1 {override}, or one after the other with -m")


def _with_yaml(names: list[str]) -> list[str]:
    """An outside method that ships no YAML can be named by nobody, and must not break the tables of everybody."""
    known = set(GlobalHydra.instance().config_loader().get_group_options("method"))
    return [name for name in names if name in known]


def _narrow(named: dict[str, str], group: str, full: list[str]) -> list[str]:
    value = named.get(group)
    return [name.strip() for name in value.strip("[]").split(",")] if value else list(full)


def _named(given: Sequence[str], group: str) -> bool:
    return any(_key(override) == group for override in given)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
