"""Where things lie: the configuration, the heads that come with this package, this user's caches. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from methods.common.errors import ConfigError

CONF = Path(__file__).resolve().parents[2] / "conf"
"""Beside the packages, in a checkout and in an installed wheel alike."""


def cache_folder() -> Path:
    """The folder for what is made or fetched once: ``DRAFTBENCH_CACHE``, else one in the user's cache directory."""
    chosen = os.environ.get("DRAFTBENCH_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "draftbench"


def shipped(name: str) -> Path:
    """The folder of heads that came with this package, as in ``smollm2_135m/eagle``."""
    root = Path(__file__).resolve().parents[1] / "weights"
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise ConfigError(f"weights {name!r} lie outside {root}; give them as a folder")
    return root / name
