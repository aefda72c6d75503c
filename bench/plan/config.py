"""From a composed Hydra config to a ``Setup``: OmegaConf's values become the frozen groups of ``bench.plan.schema``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

import methods
from bench.plan.identity import fingerprint
from bench.plan.schema import Decode, Hub, Measure, Model, Setup, Task
from methods.common.errors import ConfigError, prefixed
from methods.common.freeze import freeze
from methods.common.paths import shipped
from methods.loading.sources import source_of


def setup_of(config: DictConfig) -> Setup:
    """Freeze a composed config. A ``task.path`` makes the source a file; nothing else is derived."""
    task: Any = OmegaConf.to_container(config.task, resolve=True)
    if task.get("path"):
        task = {**task, "source": "file"}
    knobs = knobs_of(config)
    model = freeze(Model, config.model, "model")
    measure = freeze(Measure, config.measure, "measure")
    if measure.name == "paper" and model.runtime != "hf":
        raise ConfigError(
            f"measure=paper measures the stock module, as the paper did; model.runtime={model.runtime} needs "
            "measure=standard"
        )
    if model.kind == "folder":
        model = replace(model, sha256=fingerprint(model.id))
    asked = freeze(Task, task, "task")
    if measure.questions == "paper" and asked.source != "paper":
        what = f"task.path={asked.path}" if asked.path else f"task.source={asked.source}"
        raise ConfigError(
            f"measure={measure.name} takes the paper's own questions and no others; drop {what}, or choose "
            f"measure=standard"
        )
    return Setup(
        model=model,
        task=replace(asked, hub=freeze(Hub, task["hub"], "task.hub")),
        decode=freeze(Decode, config.decode, "decode"),
        measure=measure,
        methods={name: _pinned(name, values) for name, values in knobs.items() if name != "vanilla"},
    )


def knobs_of(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Every composed method with its settings.

    Raises:
        ConfigError: for a name that no method has, or what is no settings.
    """
    if not isinstance(config.methods, DictConfig):
        raise ConfigError(f"methods={config.methods} must hold methods; choose them with method=[pld,eagle2]")
    knobs: Any = OmegaConf.to_container(config.methods, resolve=True)
    for name, values in knobs.items():
        if name not in methods.names():
            raise ConfigError(f"unknown method {name!r}{methods.hint(str(name), methods.names())}")
        if not isinstance(values, dict):
            raise ConfigError(f"methods.{name}={values} must hold settings; give one by its name: methods.{name}.x=1")
    return {str(name): values for name, values in knobs.items()}


def _pinned(name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """Give weights in a local folder the hash of their content: by path alone new weights would pass for old ones."""
    weights = knobs.get("weights")
    if weights is None:
        return knobs
    with prefixed(f"methods.{name}."):
        source = source_of(weights, name)
    if isinstance(weights, str) and Path(weights).expanduser().is_dir():
        weights = {"kind": "folder", "id": weights}
    if isinstance(weights, dict) and source.kind in ("folder", "shipped"):
        folder = source.id if source.kind == "folder" else shipped(source.id)
        knobs = {**knobs, "weights": {**weights, "sha256": fingerprint(str(folder))}}
    return knobs
