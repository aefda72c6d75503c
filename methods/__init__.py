"""Decoding methods, usable as a library: ``methods.load("pld", {}, target)`` gives a drafter for ``decode``.

One table says where each method lives. A package outside this repository adds one through the entry-point group
``draftbench.methods``; a built-in name cannot be taken over. Nothing here imports torch until a method is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from methods.common.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from methods.base import Drafter
    from methods.decode.target import Target
    from methods.loading.model_header import Outline

_BUILT_IN = {
    "vanilla": "methods.vanilla:Vanilla",
    "sps": "methods.sps:SpS",
    "pld": "methods.pld:PLD",
    "medusa": "methods.medusa:Medusa",
    "lookahead": "methods.lookahead:Lookahead",
    "hydra": "methods.hydra_heads:Hydra",
    "eagle": "methods.eagle:Eagle",
    "eagle2": "methods.eagle2:Eagle2",
}


def names() -> list[str]:
    """Every registered method, vanilla first, built-ins in the paper's order, then plug-ins by name."""
    return [*_BUILT_IN, *sorted(_plug_ins())]


def load(name: str, knobs: Mapping[str, Any], target: Target, tokenizer: Any = None) -> Drafter:
    """Make a drafter.

    Args:
        name: a registered name, as in ``names()``.
        knobs: the method's own settings; what is left out keeps the paper's default.
        target: the model it will draft for.
        tokenizer: the target's; only a method that brings a language model of its own compares it.

    Raises:
        ConfigError: for an unknown name, an unknown knob, a value out of range, or weights that don't fit the target.
    """
    method, config = configure(name, knobs)
    drafter: Drafter = method(config, target, tokenizer)
    return drafter


def check(name: str, knobs: Mapping[str, Any], outline: Outline) -> None:
    """Refuse weights that don't fit a target, by the headers of their files: before any weight loads.

    Raises:
        ConfigError: as ``load``, but for what only tensors can show.
    """
    method, config = configure(name, knobs)
    if hasattr(method, "check"):
        method.check(config, outline)


def configure(name: str, knobs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Find a method and check its knobs, before any weight loads. Returns its class and its frozen config."""
    method = _resolve(name)
    known = [field.name for field in fields(method.Config)]
    for knob in knobs:
        if knob not in known:
            raise ArgumentError(f"{knob} is not a setting{hint(knob, known)}")
    for field in fields(method.Config):
        value = knobs.get(field.name, field.default)
        wanted = type(field.default)
        if field.name == "weights":
            continue  # null, a folder, a hub id or a source: methods.heads.checkpoints reads it
        # bool is an int to isinstance, and an int is a fine float; nothing else is converted.
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ArgumentError(f"{field.name}={value!r} must be of type {wanted.__name__}")
    return method, method.Config(**knobs)


def hint(word: str, known: list[str]) -> str:
    """``; did you mean 'x'? known: ...`` for an error about a name."""
    close = difflib.get_close_matches(word, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known: {', '.join(known) or 'none'}"


def _resolve(name: str) -> Any:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    plug_ins = _plug_ins()
    if name not in plug_ins:
        raise ConfigError(f"unknown method {name!r}{hint(name, names())}")
    try:
        return plug_ins[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"method {name} is registered as {plug_ins[name].value}, which fails: {error}") from None


def _plug_ins() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entry_points(group="draftbench.methods"):
        if entry.name in _BUILT_IN or entry.name in found:
            raise ConfigError(f"the package of {entry.value} registers {entry.name!r}, which is taken; rename it")
        found[entry.name] = entry
    return found
