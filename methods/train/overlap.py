"""Keeps the questions that methods are measured on out of what their heads are trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from methods.common.errors import ConfigError

WORDS = 10
"""A text that shares this many words in a row with a question is left out."""


class Overlap:
    """The word n-grams of a set of questions."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._grams = {gram for text in texts for gram in grams(text)}

    @classmethod
    def of(cls, sources: Iterable[str]) -> Overlap:
        """Read question files (``.jsonl`` with ``turns``) and folders of them.

        Raises:
            ConfigError: if a source does not exist or is not in that format.
        """
        return cls(text for path in files(sources) for text in _texts(path))

    def __contains__(self, text: str) -> bool:
        return any(gram in self._grams for gram in grams(text))


def grams(text: str) -> Iterator[str]:
    """Every run of ``WORDS`` words, lower case, without punctuation."""
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - WORDS + 1):
        yield " ".join(words[start : start + WORDS])


def files(sources: Iterable[str]) -> list[Path]:
    """The question files of a list of files and folders, sorted."""
    found: list[Path] = []
    for source in sources:
        path = Path(source).expanduser()
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise ConfigError(f"corpus.exclude: {source} is neither a .jsonl file nor a folder that holds one")
        found += inside
    return found


def _texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            question: dict[str, Any] = json.loads(line)
            yield from question["turns"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"corpus.exclude: {path} line {number} is not a question with turns") from None
