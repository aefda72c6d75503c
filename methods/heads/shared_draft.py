"""A draft model whose file holds only its layers: it uses the target's embedding and output head.

``methods.train`` makes these (``method=sps``). Such a folder's ``config.json`` says ``"shares_embedding": true``. The
vocabulary is the target's by construction, so there is no tokenizer to compare.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from methods.decode.target import Target
from methods.heads.checkpoints import Checkpoint, read_config
from methods.loading.model import fetch
from methods.loading.sources import Source


def shares_embedding(source: Source) -> bool:
    """Whether a folder says that it shares the target's embedding. A whole model is fetched and checked elsewhere."""
    if source.kind == "hub" or (source.kind == "folder" and not Path(source.id).expanduser().is_dir()):
        return False
    return bool(read_config(fetch(source) / "config.json").get("shares_embedding"))


def shared_draft(source: Source, target: Target) -> Target | None:
    """The draft of a folder that shares the target's embedding; None for a model of its own.

    Raises:
        ConfigError: if its tensors don't fit the target.
    """
    if not shares_embedding(source):
        return None
    weights = {"kind": source.kind, "id": source.id, "revision": source.revision}
    checkpoint = Checkpoint(weights, "sps", ("model.safetensors",))
    config: Any = copy.deepcopy(target.model.config)
    for name in ("num_hidden_layers", "intermediate_size"):
        size = checkpoint.config.get(name)
        if type(size) is not int or size < 1:
            raise checkpoint.error(f"config.json must give {name} as a number, it says {size!r}")
        setattr(config, name, size)
    with torch.device("meta"):
        model = type(target.model)(config)
    own = {name: tuple(value.shape) for name, value in model.base_model.named_parameters() if "embed" not in name}
    checkpoint.require({f"model.{name}": shape for name, shape in own.items()})
    cast = {name: tensor.to(target.head_device, target.dtype) for name, tensor in checkpoint.tensors.items()}
    model.load_state_dict(cast, assign=True, strict=False)
    model.set_input_embeddings(target.model.get_input_embeddings())
    model.set_output_embeddings(target.model.get_output_embeddings())
    model.base_model.rotary_emb = target.model.base_model.rotary_emb
    return Target(model.requires_grad_(False), context=target.context, runtime=target.runtime)
