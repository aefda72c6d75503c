"""Names and shapes of the tensors in a safetensors file, read from its header in milliseconds. No torch is imported."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file, by name; no tensor is read.

    Raises:
        Exception: of any kind, where the file is damaged or hostile: whoever calls says what that means.
    """
    # numpy maps the file read-only; torch's own mapping would ask for as much memory as the file is long.
    with safe_open(path, framework="np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 not a mapping
