"""The corpus: dialogues that the target writes itself, and text that it only reads, in shards of token ids.

The user's turn of the chat template opens with a few given words; the target completes the question, then writes the
answer, and in some dialogues a second turn. Each shard is one batch of one kind. It follows from the seed and its own
number alone, and is written whole: a run that was killed goes on with the first shard that is missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError
from methods.common.file_hash import sha256
from methods.loading.model import Loaded
from methods.train.chat import Chat
from methods.train.overlap import Overlap, files
from methods.train.reading import passages
from methods.train.settings import Corpus
from methods.train.writing import write


def build(loaded: Loaded, settings: Corpus, folder: Path, model: Mapping[str, Any]) -> list[Path]:
    """Make every shard that is missing; returns all of them, in order. ``model`` says whose corpus it is.

    Raises:
        ConfigError: if the folder holds shards of other settings, or of another model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(settings, model, folder / "settings.json")
    overlap = Overlap.of(settings.exclude)
    path = folder / f"reading-{settings.reading_tokens}.safetensors"
    shards = [path]
    if not path.exists():
        sizes = {"tokens": settings.reading_tokens, "length": settings.reading_length}
        _save(loaded, overlap, list(passages(loaded.tokenizer, overlap, seed=settings.seed, **sizes)), path)
    for number, name in enumerate(tqdm(list(_plan(settings)), desc="corpus", unit="shard")):
        path = folder / f"{number:05d}-{name}.safetensors"
        shards.append(path)
        if not path.exists():
            texts = list(_written(loaded, settings, name, number))
            _save(loaded, overlap, texts, path)
    return shards


def texts_of(shard: Path) -> list[list[int]]:
    """The token ids of a shard, a list a text."""
    stored = load_file(shard)
    return [part.tolist() for part in stored["tokens"].split(stored["lengths"].tolist())]


def _plan(settings: Corpus) -> Iterator[str]:
    """The kind of each shard: at any length the kinds are as frequent as their weights say."""
    total = sum(kind.weight for kind in settings.kinds.values())
    owed = dict.fromkeys(settings.kinds, 0.0)
    for _ in range(-(-settings.dialogues // settings.batch)):
        for name, kind in settings.kinds.items():
            owed[name] += kind.weight / total
        chosen = max(owed, key=lambda name: owed[name])
        owed[chosen] -= 1
        yield chosen


def _written(loaded: Loaded, settings: Corpus, name: str, number: int) -> Iterator[list[int]]:
    rng = random.Random(f"{settings.seed} {number}")  # noqa: S311 no secret
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    chat, kind = Chat(loaded.tokenizer), settings.kinds[name]
    scripts = []
    for _ in range(settings.batch):
        temperature = 0.0 if rng.random() < settings.greedy_share else 1.0
        scripts.append(chat.script(kind, rng, settings.question_temperature, temperature))
    yield from write(loaded.target, scripts, loaded.eos_ids, generator)


def _save(loaded: Loaded, overlap: Overlap, texts: list[list[int]], path: Path) -> None:
    kept = [text for text in texts if loaded.tokenizer.decode(text) not in overlap]
    lengths = torch.tensor([len(text) for text in kept], dtype=torch.int32)
    tokens = torch.tensor([token for text in kept for token in text], dtype=torch.int32)
    write_atomically(path, lambda partial: save_file({"tokens": tokens, "lengths": lengths}, partial))


def _check_same(settings: Corpus, model: Mapping[str, Any], path: Path) -> None:
    """Compare the settings that decide a shard's content: not the number of shards, nor where excluded files lie."""
    values = {key: value for key, value in asdict(settings).items() if key not in ("dialogues", "reading_tokens")}
    values["model"] = dict(model)
    values["exclude"] = sorted(sha256(file) for file in files(settings.exclude))
    text = json.dumps(values, sort_keys=True)
    if not path.exists():
        write_atomically(path, text)
    elif path.read_text() != text:
        raise ConfigError(
            f"{path.parent} holds a corpus of other settings or another model; set work=ANOTHER_FOLDER, or delete it"
        )
