"""The errors a user may see. Importing this file loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """What the user asked for cannot be done: one line that says what was given, what is allowed, what to type."""


class ArgumentError(ConfigError):
    """An argument cannot be what it is. The text begins with its name, as in ``top_p=2 must lie in (0, 1]``.

    A caller whose user knows the argument under a longer name adds that with ``prefixed``.
    """


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Let an ``ArgumentError`` of this block name what the user typed: ``decode.`` makes it ``decode.top_p=2 ...``.

    Every other error passes as it is.
    """
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{prefix}{error}") from error.__cause__


class NumericsError(RuntimeError):
    """The target returned logits that are not numbers: nothing drawn from them would mean anything."""
