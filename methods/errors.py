"""The errors a user may see. Importing this file loads no torch."""

from __future__ import annotations

MOST_ROWS = 4096
"""Of one target forward: ten times the largest tree that was ever published, and little enough to be counted."""


class ConfigError(ValueError):
    """What the user asked for cannot be done: one line that says what was given, what is allowed, what to type."""


class NumericsError(RuntimeError):
    """The target returned logits that are not numbers: nothing drawn from them would mean anything."""
