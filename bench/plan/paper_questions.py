"""The six files of 80 questions that EAGLE-2's authors measured with, known by their bytes.

They are not ours to hand out: ``draftbench prefetch questions`` fetches them from the authors' repository into
the user's cache. Every use checks the hash again, so a cell of ``measure=paper`` asks what the paper asked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from methods.common.errors import ConfigError
from methods.common.paths import cache_folder

REPOSITORY = "SafeAILab/EAGLE"
COMMIT = "cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b"


@dataclass(frozen=True)
class File:
    """One task's file: its ``path`` in the repository, and the hash of its bytes."""

    path: str
    sha256: str


def _file(folder: str, sha256: str) -> File:
    return File(f"eagle/data/{folder}/question.jsonl", sha256)


FILES = {
    "mt_bench": _file("mt_bench", "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7"),
    "humaneval": _file("humaneval", "ce0244e2b228339e9a11afc63a151719beede1e389fdaec7cd9751d33902180e"),
    "gsm8k": _file("gsm8k", "a55920b2f2aac724241124c59e5b8e8168dbbeb2ab0fdbee17d5b0ab6db5ff27"),
    "alpaca": _file("alpaca", "8ad3e5a7fc61b88d8e25edb81a52a2ce00a04494d5694c122cb11a5cc26a00df"),
    "cnn_dm": _file("sum", "916876f0c42f938a944de96eed16e51425f29f27438cca5c9ef4737c0fedf771"),
    "nq": _file("qa", "04252e41ab00bcc03b11940b4a3766cf40ae0b76a09c4f56968ba952f0b029f3"),
}
"""By our names of the tasks."""


class NotFetchedError(ConfigError):
    """The file is not on this machine yet."""


_FETCH = "run: draftbench prefetch questions"


def where(task: str) -> Path:
    """Where a task's file lies once it is fetched; the hash in its name keeps versions apart."""
    return cache_folder() / "paper_questions" / f"{task}-{FILES[task].sha256[:12]}.jsonl"


def checked(task: str) -> Path:
    """The file, its bytes being the paper's.

    Raises:
        NotFetchedError: if the file is not there.
        ConfigError: if the paper has no such task, or the file is not the paper's.
    """
    if task not in FILES:
        raise ConfigError(f"task.name={task} is not one of the paper's: {', '.join(FILES)}; choose measure=standard")
    path = where(task)
    if not path.is_file():
        raise NotFetchedError(f"the paper's questions for task={task} are not here yet ({path}); {_FETCH}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != FILES[task].sha256:
        raise ConfigError(f"{path} has sha256 {found}, the paper's file {FILES[task].sha256}; delete it and {_FETCH}")
    return path
