"""How large a model is, found without loading it: counted in its files if they are here, or else from a list.

The list, ``bench/data/model_sizes.json``, follows from the published configs: two embeddings (one if tied), and per
layer the matrices of attention and MLP and two norms. An EAGLE head is one such layer and the matrix that joins its
inputs.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.plan.schema import Model
from methods.common.paths import shipped
from methods.loading.safetensors_header import read_shapes

_LIST = Path(__file__).parents[1] / "data" / "model_sizes.json"
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Size:
    """A target in numbers: parameters, elements of the KV cache per token, and the output head's two sides."""

    parameters: int
    cache_elements: int
    vocab: int
    hidden: int
    tied: bool

    @property
    def read(self) -> int:
        """Weights that a forward reads: all but the embedding, unless it is tied to the output head."""
        return self.parameters - (0 if self.tied else self.vocab * self.hidden)


def of_target(model: Model) -> Size | None:
    """From the model's files on this machine, or else from the list; None if it is in neither."""
    folder = local_folder(model.kind, model.id, model.revision)
    if folder and (folder / "config.json").is_file() and (found := _of_folder(folder)):
        return found
    if model.kind == "folder" or not (known := _listed().get(model.id)):
        return None
    cached = 2 * known["layers"] * known["kv_heads"] * known["head_dim"]
    return Size(known["parameters"], cached, known["vocab"], known["hidden"], bool(known.get("tied")))


def of_head(weights: Any) -> int | None:
    """Parameters of one draft head: counted in its safetensors if they are here, else from the list."""
    folder = head_folder(weights)
    if folder and (counted := _parameters(folder)):
        return counted
    ident = weights["id"] if isinstance(weights, dict) else str(weights)
    return _listed().get(ident, {}).get("parameters")


def of_whole_draft(weights: Any) -> int | None:
    """Weights that a forward of a listed causal LM reads, with its output matrix; None for any other draft."""
    known = _listed().get(weights["id"] if isinstance(weights, dict) else str(weights), {})
    return known["parameters"] - known["vocab"] * known["hidden"] if "vocab" in known else None


def head_folder(weights: Any) -> Path | None:
    """Where a draft head lies on this machine; None if it has to be downloaded."""
    source = weights if isinstance(weights, dict) else {"kind": "hub", "id": str(weights)}
    if source["kind"] == "shipped":
        return shipped(source["id"])
    return local_folder(source["kind"], source["id"], source.get("revision"))


def local_folder(kind: str, ident: str, revision: str | None) -> Path | None:
    """A folder as it is, or a repository's snapshot in the hub's cache; None if there is none."""
    if kind == "folder":
        folder = Path(ident).expanduser()
        return folder if folder.is_dir() else None
    if kind != "hub":
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{ident.replace('/', '--')}"
    named = repository / "refs" / (revision or "main")
    commit = named.read_text().strip() if named.is_file() else revision
    snapshot = repository / "snapshots" / (commit or "main")
    return snapshot if any(snapshot.glob("*.safetensors")) or any(snapshot.glob("*.bin")) else None


@cache
def _listed() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(_LIST.read_text())
    return found


def _of_folder(folder: Path) -> Size | None:
    parameters = _parameters(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        cached = 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * dim
        tied = bool(config.get("tie_word_embeddings"))
        return Size(parameters, cached, config["vocab_size"], config["hidden_size"], tied) if parameters else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None  # as above: the loader says what is wrong with it


@cache
def _parameters(folder: Path) -> int:
    """Elements of all tensors in a folder's safetensors files; 0 where a file is damaged."""
    try:
        headers = [read_shapes(path) for path in folder.glob("*.safetensors")]
    except Exception:  # noqa: BLE001 a damaged file can make a parser raise anything; the loader names the file
        return 0
    return sum(math.prod(shape) for shapes in headers for shape in shapes.values())
