"""Atomic writing of files: a file holds the old content or the new one, never a part."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError


def check_writable(path: Path) -> None:
    """Check that a file could be written, before the work whose result it is to hold.

    Raises:
        UsageError: its folder does not exist or may not be written to, or the path is a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path}: expected the name of a file, got a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: permission denied")


def make_folder(path: Path) -> None:
    """Make the folder of ``--output``, unless it is there.

    Raises:
        UsageError: it cannot be made, or is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output: {path}: {error.strerror or error}") from None


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the content of a file, or create it. If `durable`, it is on disk when this returns.

    A file that exists keeps its mode. What is not a regular file, such as /dev/stdout, is written directly.

    Raises:
        MltcpError: it could not be written; the file is unchanged.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content, durable)
    except OSError as error:
        raise MltcpError(f"{path}: {error.strerror or error}") from None


def _replace(path: Path, content: bytes, durable: bool) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    if durable:
        sync_directory(path.parent)


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS, errno.EACCES, errno.EPERM)
"""Of file systems that synchronise no directories, as 9p and some of FUSE, and of directories one may not read."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; without this, a crash may undo a renaming.

    A file system that cannot do that is as good as it is: what was renamed is there.

    Raises:
        OSError: the directory is gone, or its disk failed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
