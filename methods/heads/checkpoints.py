"""Strict loading of published draft heads: safetensors first, pickle only through ``weights_only``.

Each method lists the tensors it expects by name and shape; anything missing, left over or of another size is refused
in one line that names the fix. The references load with ``strict=False``: there a wrong head drafts garbage, the text
stays right, and tau quietly falls to 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from methods.common.errors import ConfigError
from methods.loading.model import fetch
from methods.loading.sources import source_of
from methods.loading.tensor_files import Shapes, difference, read_tensors, shapes_of


class Checkpoint:
    """A head's folder: its ``config.json``, and its tensors by name and ``shapes`` before they are read."""

    def __init__(self, weights: Any, method: str, files: Iterable[str]) -> None:
        self.method = method
        self.source = source_of(weights, method)
        folder = fetch(self.source)
        self.config = read_config(folder / "config.json")
        self.path = _first_file(folder, tuple(files), method)
        self.shapes = shapes_of(self.path)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, read at the first call; ``shapes`` are known before."""
        tensors = read_tensors(self.path)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise self.error(f"{name} holds NaN or infinity")
        return tensors

    def require(self, expected: Shapes, *, ignored: Iterable[str] = ()) -> None:
        """Hold the file's header against what is expected, by name and by shape; ``ignored`` names may be there.

        Raises:
            ConfigError: listing what is missing, what is left over, or which shape is wrong.
        """
        found = {name: shape for name, shape in self.shapes.items() if name not in set(ignored)}
        if what := difference(expected, found, "the target"):
            raise self.error(what)

    def error(self, what: str) -> ConfigError:
        """An error that names the file and the method."""
        return ConfigError(f"{self.path} is not a {self.method} head for this model: {what}")


def read_config(path: Path) -> dict[str, Any]:
    """A ``config.json``; empty where there is none.

    Raises:
        ConfigError: if it is not JSON.
    """
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds a {type(config).__name__} where a model's settings belong")
    return config


def _first_file(folder: Path, names: tuple[str, ...], method: str) -> Path:
    """The first of the names that exists; any safetensors file before any pickle."""
    safe = [Path(name).with_suffix(".safetensors").name for name in names]
    for name in (*safe, *names):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} holds no weights for {method}: expected {' or '.join(names)} (or .safetensors)")
