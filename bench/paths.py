"""Where the configuration lies: beside this package, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).resolve().parent.parent / "conf"
