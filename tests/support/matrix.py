"""Settings of every registered method for the matrix of losslessness, and random weights for those that need some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import methods
from methods.base import Drafter
from methods.decode.target import Target
from tests.support.heads import write_draft_model, write_eagle, write_hydra, write_medusa, write_ranking

MATRIX_VOCAB = 24
EOS = 7
NEW_TOKENS = 24

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "vanilla": {"": {}},
    "sps": {
        "constant": {"schedule": "constant", "num_draft": 3},
        "heuristic": {"schedule": "heuristic", "num_draft": 2},
    },
    "pld": {
        "orig": {"variant": "orig", "num_draft": 3},
        "orig-long": {"variant": "orig", "num_draft": 10, "max_ngram": 2},
        "hf": {"variant": "hf", "num_draft": 4, "max_ngram": 2},
        "hf-one": {"variant": "hf", "num_draft": 1, "max_ngram": 1},
    },
    "medusa": {
        "wide": {"tree": "4 | 0:3 1:1 0/0:2 0/1:1"},
        "narrow": {"tree": "1 | 0:1 0/0:1 0/0/0:1"},
        "few": {"tree": "4 | 0:3 1:1", "draft_vocab": 9},
    },
    "lookahead": {
        "whole": {"window": 4, "ngram": 3, "guesses": 3},
        "capped": {"window": 4, "ngram": 3, "guesses": 3, "parity_cap": True},
        "bigrams": {"window": 2, "ngram": 2, "guesses": 5},
        "long": {"window": 1, "ngram": 5, "guesses": 2},
    },
    "hydra": {
        "wide": {"tree": "4 | 0:3 1:1 0/0:2 0/1:1"},
        "narrow": {"tree": "1 | 0:1 0/0:1 0/0/0:1"},
        "few": {"tree": "4 | 0:3 1:1", "draft_vocab": 9},
    },
    "eagle": {
        "paper": {"tree": "eagle_25"},
        "narrow": {"tree": "2 | 0:1 0/0:2"},
        "few": {"tree": "4 | 0:3 1:1", "draft_vocab": 9},
    },
    "eagle2": {
        "small": {"total_tokens": 8, "depth": 3, "top_k": 3},
        "expanded": {"total_tokens": 8, "depth": 3, "top_k": 2, "rerank": False},
        "few": {"total_tokens": 8, "depth": 3, "top_k": 3, "draft_vocab": 9},
    },
}


def draft_model(folder: Path, target: Target) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"t{token}": token for token in range(MATRIX_VOCAB)}, unk_token="t0"))
    return write_draft_model(folder, target, PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"t{EOS}"))


WEIGHTS: dict[str, Callable[[Path, Target], Path]] = {
    "sps": draft_model,
    "medusa": write_medusa,
    "hydra": write_hydra,
    "eagle": write_eagle,
    "eagle2": write_eagle,
}


def maker(small: Target, folders: pytest.TempPathFactory) -> Callable[..., Drafter]:
    """Makes a method in one of its settings, with random weights that are written once."""
    written: dict[str, dict[str, str]] = {}

    def make(name: str, setting: str, target: Target = small) -> Drafter:
        if name in WEIGHTS and name not in written:
            folder = write_ranking(WEIGHTS[name](folders.mktemp(name), small), MATRIX_VOCAB)
            written[name] = {"weights": str(folder)}
        return methods.load(name, SETTINGS[name][setting] | written.get(name, {}), target)

    return make
