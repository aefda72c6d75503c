"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then rename it: whoever finds ``path`` finds all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            write(partial)
            sync(partial)
            partial.replace(path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let every failure to write be an ``OSError`` with the file's name: torch and safetensors have errors of their
    own for a full disk, numpy's says how many bytes were left over."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    except (SafetensorError, RuntimeError) as error:
        raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from error


def sha256(path: Path) -> str:
    """The hash of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
