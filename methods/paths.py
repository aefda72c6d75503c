"""Where this user's caches lie. Importing this file loads no torch."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """What is made or fetched once: ``DRAFTBENCH_CACHE``, else the user's cache directory."""
    chosen = os.environ.get("DRAFTBENCH_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "draftbench"
