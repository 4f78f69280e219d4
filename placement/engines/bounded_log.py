"""The log of a process that prints without end: its start and its latest part, on a disk that keeps a reserve."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 256 << 20
"""The most that the log of a rank has, unless another size was chosen."""

SMALLEST_LOG_BYTES = 4096

_RESERVE_BYTES = 1 << 30
_RESERVE_FRACTION = 0.2
_CHECK_BYTES, _CHECK_S = 1 << 20, 1.0
_PIECE_BYTES = 1 << 20


def log_reserve_bytes(disk_bytes: int) -> int:
    """What logs leave free of a file system of this size: more than the service's state needs, which may be beside."""
    return min(_RESERVE_BYTES, int(_RESERVE_FRACTION * disk_bytes))


class BoundedLog:
    """A file that is appended to, and never has more than `most_bytes`. No error of the disk is raised.

    When it is full, the first half stays, and of the rest the latest part; a line between them says how much was left
    out. While the file system has less left than its reserve (1 GiB, or a fifth of a small one), nothing is written.

    Args:
        path: of the file; what it has is kept.
        most_bytes: at least `SMALLEST_LOG_BYTES`.
    """

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        self._most_bytes = max(most_bytes, SMALLEST_LOG_BYTES)
        self._left_out = self._lost = 0
        self._why = ""
        self._unchecked, self._check_at_s = 0, 0.0
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> None:
        """Append data, or count it as left out."""
        if self._file is None:
            return
        lacking = self._lacking_space(len(data))
        if lacking:
            if not self._lost:
                self._try_to_append(b"\n[... left out from here on: %s ...]\n" % lacking.encode())
            self._lost += len(data)
            return
        if self._lost:
            if not self._try_to_append(b"\n[... %d bytes were left out ...]\n" % self._lost):
                self._lost += len(data)
                return
            self._lost = 0
        if not self._try_to_append(data):
            self._lost += len(data)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try_to_append(self, data: bytes) -> bool:
        try:
            self._append(memoryview(data))
        except OSError:
            return False
        return True

    def _append(self, data: memoryview) -> None:
        assert self._file is not None
        while data:
            # Others may have emptied it meanwhile.
            size = os.fstat(self._file).st_size
            if size >= self._most_bytes:
                size = self._make_room(size)
            written = os.pwrite(self._file, data[: self._most_bytes - size], size)
            data = data[written:]

    def _make_room(self, size: int) -> int:
        """Leave out the middle; returns the new size."""
        assert self._file is not None
        half, kept = self._most_bytes // 2, self._most_bytes // 4
        before = 0 if self._left_out == 0 else len(self._note())
        self._left_out += size - half - before - kept
        note = self._note()
        to = half + os.pwrite(self._file, note, half)
        for start in range(size - kept, size, _PIECE_BYTES):
            piece = os.pread(self._file, min(_PIECE_BYTES, size - start), start)
            to += os.pwrite(self._file, piece, to)
        os.ftruncate(self._file, to)
        return to

    def _note(self) -> bytes:
        text = f"{self._left_out} bytes were left out, because a log has at most {self._most_bytes}"
        return f"\n[... {text:<80} ...]\n".encode()

    def _lacking_space(self, count: int) -> str:
        """Why nothing is to be written now; empty: it may be."""
        assert self._file is not None
        self._unchecked += count
        now_s = time.monotonic()
        if self._unchecked >= _CHECK_BYTES or now_s >= self._check_at_s:
            self._unchecked, self._check_at_s, self._why = 0, now_s + _CHECK_S, ""
            with suppress(OSError):
                disk = os.fstatvfs(self._file)
                reserve = log_reserve_bytes(disk.f_blocks * disk.f_frsize)
                if disk.f_bavail * disk.f_frsize < reserve:
                    self._why = f"the file system has less than its reserve of {reserve >> 20} MiB left"
        return self._why
