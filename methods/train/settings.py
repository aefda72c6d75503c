"""What ``conf/train.yaml`` may say; a typo or a wrong type is refused before anything loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import methods
from methods.common.errors import ConfigError, prefixed
from methods.common.freeze import freeze
from methods.common.limits import within


@dataclass
class Kind:
    """A kind of dialogue: how the user's turn opens, and how long it and the answer may get (tokens)."""

    weight: float
    question_tokens: int
    answer_tokens: int
    openings: list[str]
    closing: str = ""
    turns: int = 1


@dataclass
class Corpus:
    """Which texts; see the comments of ``conf/train.yaml``."""

    seed: int
    dialogues: int
    batch: int
    greedy_share: float
    question_temperature: float
    exclude: list[str]
    reading_tokens: int
    reading_length: int
    kinds: dict[str, Kind]


@dataclass
class Features:
    """``batch_tokens``: tokens a forward, over texts of similar length."""

    batch_tokens: int


@dataclass
class Training:
    """The loop that all heads share."""

    seed: int
    held_out: float
    window: int
    batch: int
    tokens: int
    learning_rate: float
    warmup_steps: int
    clip: float
    vocabulary: int
    evaluate_every: int
    start: str | None


@dataclass
class Probe:
    """Questions on which tau is measured after training, and how many tokens each is answered with, greedily."""

    questions: list[str]
    tokens: int


@dataclass
class Settings:
    """One training run. ``heads`` holds each method's own settings, of the type that its trainer names."""

    work: str
    output: str
    corpus: Corpus
    features: Features
    training: Training
    probe: Probe
    heads: dict[str, Any]


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Check a composed configuration.

    Raises:
        ConfigError: naming the setting, in one line.
    """
    settings = freeze(Settings, values)
    with prefixed("corpus."):
        within("greedy_share", settings.corpus.greedy_share, 0, 1)
        within("batch", settings.corpus.batch, 1, 4096)
    with prefixed("training."):
        within("held_out", settings.training.held_out, 0, 0.5)
        within("window", settings.training.window, 16, 65536)
    if settings.training.start and not Path(settings.training.start).is_file():
        raise ConfigError(
            f"training.start={settings.training.start} is no file; give a checkpoint, WORK/training/METHOD.pt"
        )
    heads = {
        name: freeze(trainer.Settings, settings.heads.get(name, {}), f"heads.{name}")
        for name, trainer in methods.trainers().items()
    }
    return replace(settings, heads=heads)
