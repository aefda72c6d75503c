"""A pickle that acts when it is read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any


class Touches:
    """Unpickling this makes a file: the least that a stranger's code could do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def plain(thing: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(thing))
