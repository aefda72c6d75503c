"""A target before its weights load: what its config says, which is what draft heads must fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from methods.loading.tensor_files import difference, shapes_in

_NAME_FOR_NAME = ("llama", "mistral", "qwen2")
"""Model types whose files name their tensors as the modules do. transformers renames others' while it loads them."""


@dataclass(frozen=True)
class Outline:
    """A model's config, read as a ``Target`` is: by ``config``, ``hidden`` and ``vocab``."""

    config: Any

    @property
    def hidden(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab(self) -> int:
        return int(self.config.vocab_size)


def misfit(config: Any, folder: Path) -> str | None:
    """How the weights in a folder differ from the model that its config describes, by their headers alone.

    None if they fit, if they are not all there yet, or if the model's type or a quantization renames tensors.

    Raises:
        ConfigError: if a file is damaged.
    """
    found = shapes_in(folder)
    if config.model_type not in _NAME_FOR_NAME or getattr(config, "quantization_config", None):
        return None
    if found is None:
        return None
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings and "lm_head.weight" not in found:
        expected.pop("lm_head.weight", None)
    # Old files of Llama carry the rotary frequencies, which the config determines.
    known = {name: shape for name, shape in found.items() if not name.endswith("rotary_emb.inv_freq")}
    return difference(expected, known, "its config")
