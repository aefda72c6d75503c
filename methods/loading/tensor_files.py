"""Weights files: the names and shapes in their headers, and the tensors. Safetensors, and pickles of tensors alone.

A header is read in milliseconds whatever the file's size, so what does not fit is refused before anything loads.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from methods.common.errors import ConfigError
from methods.loading.safetensors_header import read_shapes

Shapes = Mapping[str, tuple[int, ...]]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, on the CPU. A pickle runs nothing: only tensors are rebuilt.

    Raises:
        ConfigError: if the file is damaged or holds anything but tensors.
    """
    if path.suffix != ".safetensors":
        return _unpickled(path, "cpu")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except Exception as error:  # noqa: BLE001 a damaged or hostile file can make a parser raise anything
        raise _unreadable(path, error) from None
    return tensors


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file, by name; no tensor is read.

    Raises:
        ConfigError: as ``read_tensors``.
    """
    if path.suffix != ".safetensors":
        return {name: tuple(tensor.shape) for name, tensor in _unpickled(path, "meta").items()}
    try:
        return read_shapes(path)
    except Exception as error:  # noqa: BLE001 as above
        raise _unreadable(path, error) from None


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """The same for a model in hub layout, of one file or of shards. None if its weights are not all there.

    Raises:
        ConfigError: as ``read_tensors``.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):  # the order in which transformers looks
        index = folder / f"{name}.index.json"
        files = [name]
        if not (folder / name).is_file() and index.is_file():
            files = _shards(index)
        if all((folder / file).is_file() for file in files):
            return {tensor: shape for file in files for tensor, shape in shapes_of(folder / file).items()}
    return None


def _shards(index: Path) -> list[str]:
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not files or any(Path(file).name != file for file in files):
            raise ValueError("its weight_map must name files of its own folder")
    except Exception as error:  # noqa: BLE001 as above
        raise _unreadable(index, error) from None
    return files


def difference(expected: Shapes, found: Shapes, needed_by: str) -> str | None:
    """How a file differs from what is needed, in a phrase: names, or else the first wrong shape. None if it fits."""
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unexpected:
        named = {"missing": missing, "unexpected": unexpected}
        return ", ".join(f"{what} {_some(names)}" for what, names in named.items() if names)
    for name, shape in expected.items():
        if tuple(found[name]) != tuple(shape):
            return f"{name} has shape {list(found[name])}, {needed_by} needs {list(shape)}"
    return None


def _unpickled(path: Path, device: str) -> dict[str, Tensor]:
    try:
        # Only torch's zip format can be mapped; the older one is read whole.
        loaded = torch.load(path, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # noqa: BLE001 as above
        raise _unreadable(path, error) from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ConfigError(f"{path} holds more than named tensors; where it was made, save its state_dict() alone")
    tensors: dict[str, Tensor] = loaded
    return tensors


def _unreadable(path: Path, error: Exception) -> ConfigError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ConfigError(f"{path} cannot be read as weights: {reason}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
