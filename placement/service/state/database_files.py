"""The files of the store's database: checks of their owners, and locks, so that one service at a time uses them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.trusted_directory import ROOT, make_trusted_directory

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class DatabaseFiles:
    """The database, its log and its lock, taken for this process until it is closed.

    The lock file keeps out services that were given the same name, the lock of the database itself those that reach it
    by another one.

    Args:
        path: of the database; symbolic links are followed.

    Raises:
        UsageError: another account controls the directory or owns a file, or a file has other names or is no file.
        MltcpError: another service uses the database, or the file system cannot tell.
    """

    def __init__(self, path: Path) -> None:
        self._locks: list[int] = []
        make_trusted_directory(path.parent, holds="the service's state")
        try:
            self.path = path.resolve()
        except (OSError, RuntimeError) as error:
            raise MltcpError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        make_trusted_directory(self.path.parent, holds="the service's state")
        try:
            for each in (Path(f"{self.path}.lock"), *self._data()):
                _check_file(each)
            self._take(Path(f"{self.path}.lock"))
            self._take(self.path)
            if _is_in_the_way(self.path):
                os.close(self._locks.pop())
        except BaseException:
            self.close()
            raise

    def close_to_others(self) -> None:
        """Take the rights of other accounts to the database and its log, which hold the environments of jobs."""
        for each in self._data():
            try:
                with suppress(FileNotFoundError):
                    mode = stat.S_IMODE(each.stat().st_mode)
                    if mode & (stat.S_IRWXG | stat.S_IRWXO):
                        each.chmod(mode & stat.S_IRWXU)
            except OSError as error:
                raise MltcpError(f"{each}: {error.strerror}") from None

    def close(self) -> None:
        """Give the locks back; the database must be closed before."""
        for each in self._locks:
            os.close(each)
        self._locks.clear()

    def _data(self) -> tuple[Path, ...]:
        return tuple(Path(f"{self.path}{end}") for end in ("", "-wal", "-shm", "-journal"))

    def _take(self, path: Path) -> None:
        try:  # a database that does not exist yet is locked before anything is written to it
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise MltcpError(f"{path}: {error.strerror}") from None
        self._locks.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MltcpError(f"{self.path}: another placement service uses it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise MltcpError(f"{path}: {error.strerror}") from None
            if path != self.path:  # SQLite has locks of its own on the database, which these would end
                self._take_record_lock(descriptor, error)

    def _take_record_lock(self, descriptor: int, without: OSError) -> None:
        """Lock as NFS does, where the file system has no locks of whole files."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise MltcpError(f"{self.path}: another placement service uses it") from None
            raise MltcpError(
                f"{self.path}: the file system has no locks ({without.strerror}), so that a second service could use "
                "it: expected --state on a local file system"
            ) from None


def _is_in_the_way(path: Path) -> bool:
    """Whether the lock of a database that this process has taken keeps records of it from being locked.

    SQLite locks records. On a local file system these are locks of another kind; NFS and others know one kind only.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(
            descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        )
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _check_file(path: Path) -> None:
    """Raise `UsageError` unless a file is absent, or one that only this account, or root, can have put there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise MltcpError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: expected a file, got something else")
    if found.st_uid not in (ROOT, os.geteuid()):
        raise UsageError(
            f"{path}: expected a file of this account or root, got one of account {found.st_uid}: it may name commands "
            "that would be run"
        )
    if found.st_nlink > 1:
        raise UsageError(
            f"{path}: expected a file with one name, got one with {found.st_nlink} (hard links), by which another "
            "service could use it"
        )
