"""A user's mistake as one line: what was given, what is allowed, what to type next. Hydra's own take several."""

from __future__ import annotations

import re

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

import methods
from methods.common.paths import CONF


def explain(error: Exception) -> str:
    """One line for any error that reaches the entry points."""
    text = str(error)
    if found := re.search(r"Could not (?:find|load) '(\w+)/([^']+)'", text):
        group, option = found.groups()
        options = methods.names() if group == "method" else sorted(p.stem for p in (CONF / group).glob("*.yaml"))
        return f"unknown {group} {option!r}{methods.hint(option, options)}"
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown_setting(found.group(1))
    said, grammar, _ = " ".join(text.split()).partition(" See https://hydra.cc")
    if grammar:
        said += "; where a value holds signs of Hydra's grammar, quote it twice: 'key=\"a=b, c\"'"
    return said or type(error).__name__


def _unknown_setting(key: str) -> str:
    *parents, last = key.split(".")
    GlobalHydra.instance().clear()
    everything = [f"method=[{','.join(methods.names())}]", "table=table1"]
    with initialize_config_dir(str(CONF), version_base=None):
        node: DictConfig | None = compose("config", overrides=everything)
    for parent in parents:
        child = node.get(parent) if node is not None else None
        node = child if isinstance(child, DictConfig) else None
    known = sorted(str(name) for name in node) if node is not None else []
    return f"unknown setting {key!r}{methods.hint(last, known)}"
