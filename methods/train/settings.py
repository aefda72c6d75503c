"""What ``conf/train.yaml`` may say; a typo or a wrong type is refused before anything loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from methods.common.errors import ConfigError


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
class Eagle:
    """See ``methods.train.eagle``."""

    feature_weight: float
    token_weight: float
    noise: float
    own_share: float
    intermediate_size: int | None


@dataclass
class Ahead:
    """Medusa's and Hydra's: how many heads, and how much less each further one weighs."""

    heads: int
    decay: float


@dataclass
class SpS:
    """See ``methods.train.sps``."""

    layers: int
    intermediate_size: int | None


@dataclass
class Heads:
    """Settings of one kind of head."""

    eagle: Eagle
    medusa: Ahead
    hydra: Ahead
    sps: SpS


@dataclass
class Settings:
    """One training run."""

    work: str
    output: str
    corpus: Corpus
    features: Features
    training: Training
    probe: Probe
    heads: Heads


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Check a composed configuration.

    Raises:
        ConfigError: naming the setting, in one line.
    """
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), values))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'train'}: {str(error).splitlines()[0]}") from None
    assert isinstance(settings, Settings)
    for name, low, high, value in (
        ("corpus.greedy_share", 0, 1, settings.corpus.greedy_share),
        ("training.held_out", 0, 0.5, settings.training.held_out),
        ("corpus.batch", 1, 4096, settings.corpus.batch),
        ("training.window", 16, 65536, settings.training.window),
        ("heads.eagle.own_share", 0, 1, settings.heads.eagle.own_share),
        ("heads.medusa.heads", 1, 16, settings.heads.medusa.heads),
        ("heads.hydra.heads", 1, 16, settings.heads.hydra.heads),
        ("heads.sps.layers", 1, 1000, settings.heads.sps.layers),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name}={value} must lie in [{low}, {high}]")
    if settings.training.start and not Path(settings.training.start).is_file():
        raise ConfigError(
            f"training.start={settings.training.start} is no file; give a checkpoint, WORK/training/METHOD.pt"
        )
    return settings
