"""The errors a user may see. Importing this file loads no torch."""

from __future__ import annotations


class ConfigError(ValueError):
    """What the user asked for cannot be done: one line that says what was given, what is allowed, what to type."""


class NumericsError(RuntimeError):
    """The target returned logits that are not numbers: nothing drawn from them would mean anything."""
