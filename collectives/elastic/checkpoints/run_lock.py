"""The lock that keeps two runs of a job from using its checkpoints at the same time."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mltcp.core.errors import MltcpError

_POLL_S = 0.05
_LONGEST_OWNER = 200


class CheckpointsInUse(MltcpError):
    """Another run of the job still uses its checkpoints."""


class RunLock:
    """A lock that ends with the process that holds it, however that ends; its file names the holder.

    It is a lock of the process (fcntl), which workers that the process forks do not inherit.

    Args:
        path: the file, created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, wait_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock, waiting for the other run; False if `given_up` before that.

        Raises:
            CheckpointsInUse: the other run has not ended within `wait_s`.
            MltcpError: the file cannot be opened, or its file system has no locks.
        """
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MltcpError(f"{self._path}: {error.strerror}") from None
        end_s = time.monotonic() + wait_s
        while not self._locked(file):
            if given_up() or time.monotonic() >= end_s:
                owner = os.pread(file, _LONGEST_OWNER, 0).decode(errors="replace").strip()
                os.close(file)
                if given_up():
                    return False
                raise CheckpointsInUse(
                    f"{self._path.parent}: expected no other run within {wait_s:g} s, got {owner or 'one'}"
                )
            time.sleep(_POLL_S)
        self._file = file
        with suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _locked(self, file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            os.close(file)
            raise MltcpError(
                f"{self._path}: expected a file system with locks (fcntl): {error.strerror or error}"
            ) from None
        return True
