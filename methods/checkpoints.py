"""Strict loading of published draft heads: safetensors first, pickle only through ``weights_only``.

Each method lists the tensors it expects by name and shape; anything missing, left over or of another size is refused
in one line that names the fix. The references load with ``strict=False``: there a wrong head drafts garbage, the text
stays right, and tau quietly falls to 1.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from methods.errors import ConfigError
from methods.loading import fetch
from methods.sources import source_of

Shapes = Mapping[str, tuple[int, ...]]


class Checkpoint:
    """A head's folder: its ``config.json`` and its tensors, read once."""

    def __init__(self, weights: Any, method: str, files: Iterable[str]) -> None:
        self.method = method
        self.source = source_of(weights, method)
        folder = fetch(self.source)
        self.config = read_config(folder / "config.json")
        self.path = _first_file(folder, tuple(files), method)
        self.tensors = read_tensors(self.path)

    def check(self, expected: Shapes, *, ignored: Iterable[str] = ()) -> dict[str, Tensor]:
        """The expected tensors, exactly: by name and by shape. ``ignored`` names may be there and are not used.

        Raises:
            ConfigError: listing what is missing, what is left over, or which shape is wrong.
        """
        found = {name: tensor for name, tensor in self.tensors.items() if name not in set(ignored)}
        missing = sorted(set(expected) - set(found))
        unexpected = sorted(set(found) - set(expected))
        if missing or unexpected:
            parts = [f"missing {_some(missing)}"] * bool(missing) + [f"unexpected {_some(unexpected)}"] * bool(
                unexpected
            )
            raise self.error(", ".join(parts))
        for name, shape in expected.items():
            if tuple(found[name].shape) != tuple(shape):
                raise self.error(f"{name} has shape {list(found[name].shape)}, the target needs {list(shape)}")
        return {name: found[name] for name in expected}

    def error(self, what: str) -> ConfigError:
        """An error that names the file and the method."""
        return ConfigError(f"{self.path} is not a {self.method} head for this model: {what}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, on the CPU. A pickle runs nothing: only tensors are rebuilt.

    Raises:
        ConfigError: if the file is damaged or holds anything but tensors.
    """
    try:
        if path.suffix == ".safetensors":
            tensors: dict[str, Tensor] = load_file(path)
            return tensors
        # Only torch's zip format can be mapped; the older one is read whole.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # noqa: BLE001 a damaged or hostile file can make a parser raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path} cannot be read as weights: {reason}") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ConfigError(
            f"{path} holds more than named tensors; convert it with scripts/convert_weights.py where it was made"
        )
    tensors = loaded
    return tensors


def read_config(path: Path) -> dict[str, Any]:
    """A ``config.json``; empty where there is none.

    Raises:
        ConfigError: if it is not JSON.
    """
    if not path.exists():
        return {}
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return config


def _first_file(folder: Path, names: tuple[str, ...], method: str) -> Path:
    """The first of the names that exists; any safetensors file before any pickle."""
    safe = [Path(name).with_suffix(".safetensors").name for name in names]
    for name in (*safe, *names):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} holds no weights for {method}: expected {' or '.join(names)} (or .safetensors)")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
