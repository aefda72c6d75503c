"""Files that are there whole or not at all, and errors that name the file: records and training write through this."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


def write_atomically(path: Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file beside ``path``, sync it, then rename it: whoever finds ``path`` finds all of it.

    Args:
        path: the file; its folder must be there.
        content: text, bytes, or a function that fills the path it is given.

    Raises:
        OSError: naming ``path``; the old file is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            temporary.unlink(missing_ok=True)  # a stranger's link of that name would be written through
            if callable(content):
                content(temporary)
            else:
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let every failure to read or write be an ``OSError`` with the file's name.

    The system's errors for a write or a sync name no file, or the temporary one. torch and safetensors have errors of
    their own for a full disk, and numpy's says how many bytes were left over.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    except (SafetensorError, RuntimeError) as error:
        raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from error
