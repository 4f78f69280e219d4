"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError


def check_writable(path: Path) -> None:
    """Refuse, before any work is done for it, a file that could not be written.

    Raises:
        UsageError: its folder does not exist or may not be written to, or there is a folder of that name.
    """
    if path.is_dir():
        raise UsageError(f"{path}: a folder; the name of a file is allowed")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: it may not be written to")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, it holds what it did before or all of the content.

    Raises:
        MltcpError: it could not be written; nothing was changed.
    """
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        raise MltcpError(f"{path}: {error.strerror or error}") from None


def _replace(path: Path, content: bytes) -> None:
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
