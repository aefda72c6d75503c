"""Decoding methods, usable as a library: ``methods.load("pld", {}, target)`` gives a drafter for ``decode``.

One table says what there is of each method: a new one adds its row. A package outside this repository adds a method
through the entry-point group ``draftbench.methods``; a built-in name cannot be taken over. Nothing here imports torch
until a method is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from methods.common.errors import ArgumentError, ConfigError
from methods.heads import cycle_cost as cost
from methods.heads.cycle_cost import CycleCost, DraftSize

if TYPE_CHECKING:
    from methods.base import Drafter
    from methods.decode.target import Target
    from methods.loading.model_header import Outline


@dataclass(frozen=True)
class Row:
    """A built-in method. ``drafter`` and ``trainer`` are places, ``module:class``; what is None the method lacks.

    ``cycle`` counts what a cycle costs; ``trainer`` makes its weights; ``head_of`` names the method whose weights it
    drafts with.
    """

    drafter: str
    cycle: cost.Cost | None = None
    trainer: str | None = None
    head_of: str | None = None


_BUILT_IN = {
    "vanilla": Row("methods.vanilla:Vanilla", cost.root_only),
    "sps": Row("methods.sps:SpS", cost.drafted_chain, "methods.train.sps:SpSTraining"),
    "pld": Row("methods.pld:PLD", cost.found_chain),
    "medusa": Row("methods.medusa:Medusa", cost.tree_in_one_pass, "methods.train.medusa:MedusaTraining"),
    "lookahead": Row("methods.lookahead:Lookahead", cost.ngrams_and_window),
    "hydra": Row("methods.hydra_heads:Hydra", cost.tree_by_heads, "methods.train.hydra:HydraTraining"),
    "eagle": Row("methods.eagle:Eagle", cost.tree_by_levels, "methods.train.eagle:EagleTraining"),
    "eagle2": Row("methods.eagle2:Eagle2", cost.grown_tree, head_of="eagle"),
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


def cycle_cost(name: str, knobs: Mapping[str, Any], draft: DraftSize) -> CycleCost | None:
    """A cycle at these settings, at most; None where the method, a setting or the size of its draft is not known."""
    row = _BUILT_IN.get(name)
    try:
        return row.cycle(knobs, draft) if row and row.cycle else None
    except LookupError:
        return None


def trainers() -> dict[str, Any]:
    """The class that makes a method's weights, for each built-in method that has one. Imports torch."""
    return {name: _at(row.trainer) for name, row in _BUILT_IN.items() if row.trainer}


def refuse_untrainable(names: list[str]) -> None:
    """Refuse what is not one method whose weights can be made here.

    Raises:
        ConfigError: naming those that can.
    """
    known = [name for name, row in _BUILT_IN.items() if row.trainer]
    if len(names) == 1 and names[0] in known:
        return
    shared = [(name, row.head_of) for name, row in _BUILT_IN.items() if name in names and row.head_of]
    advice = "".join(f"; {name} drafts with the head of {other}: train method={other}" for name, other in shared)
    raise ConfigError(f"method={','.join(names)} cannot be trained; choose one of {', '.join(known)}{advice}")


def hint(word: str, known: list[str]) -> str:
    """``; did you mean 'x'? known: ...`` for an error about a name."""
    close = difflib.get_close_matches(word, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known: {', '.join(known) or 'none'}"


def _resolve(name: str) -> Any:
    if name in _BUILT_IN:
        return _at(_BUILT_IN[name].drafter)
    plug_ins = _plug_ins()
    if name not in plug_ins:
        raise ConfigError(f"unknown method {name!r}{hint(name, names())}")
    try:
        return plug_ins[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"method {name} is registered as {plug_ins[name].value}, which fails: {error}") from None


def _at(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _plug_ins() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entry_points(group="draftbench.methods"):
        if entry.name in _BUILT_IN or entry.name in found:
            raise ConfigError(f"the package of {entry.value} registers {entry.name!r}, which is taken; rename it")
        found[entry.name] = entry
    return found
