"""The process that owns something which outlives it: a cgroup, a map entry, a lab."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import NotAvailableError

_PACKED = struct.Struct("=QQQ")
_STATE, _START_TICKS = 0, 19  # fields 3 and 22 of /proc/PID/stat, counted from the state on
_FIRST_NAMESPACE = (
    0xEFFFFFFC  # the inode of the pid namespace that the machine started with (PROC_PID_INIT_INO)
)


@dataclass(frozen=True)
class Owner:
    """A process that no other one is mistaken for: pids are used again, and each pid namespace has its own.

    Attributes:
        pid: in its own pid namespace.
        start_ticks: its start time in clock ticks since the machine's boot.
        namespace: the inode of its pid namespace.
    """

    pid: int
    start_ticks: int
    namespace: int

    @classmethod
    def current(cls) -> Owner:
        """The calling process.

        Raises:
            NotAvailableError: /proc is not mounted.
        """
        ticks = _start_ticks("self")
        if ticks is None:
            raise NotAvailableError("/proc does not show this process: is it mounted here?")
        return cls(os.getpid(), ticks, _own_namespace())

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that `str` gave this text of; None: it is no such text."""
        fields = text.split("-")
        if len(fields) != 3 or not all(field.isascii() and field.isdecimal() for field in fields):
            return None
        return cls(*map(int, fields))

    def __str__(self) -> str:
        return f"{self.pid}-{self.start_ticks}-{self.namespace}"

    @classmethod
    def unpack(cls, packed: bytes) -> Owner | None:
        """The owner that `pack` gave these bytes of; None: they are zero, which stands for no owner."""
        fields = _PACKED.unpack(packed)
        return cls(*fields) if any(fields) else None

    def pack(self) -> bytes:
        """Three 64-bit numbers: the pid, the start time, the pid namespace."""
        return _PACKED.pack(self.pid, self.start_ticks, self.namespace)

    def is_alive(self) -> bool:
        """Whether this process still runs; a zombie does not. One that cannot be judged from here counts as alive.

        A process of another pid namespace can be judged only from the machine's first one, which shows all processes.
        """
        namespace = _own_namespace()
        if not _shows_own_namespace():
            return namespace != self.namespace or _exists(self.pid)
        if namespace == self.namespace:
            return self._is(str(self.pid)) if _is_shown(self.pid) else _exists(self.pid)
        if namespace != _FIRST_NAMESPACE or not _is_shown(1):
            return True
        return any(_pids(name)[-1:] == [self.pid] and self._is(name) for name in os.listdir("/proc"))

    def _is(self, name: str) -> bool:
        return _start_ticks(name) == self.start_ticks


def _own_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _shows_own_namespace() -> bool:
    """Whether the numbers in /proc are those of the own pid namespace, not those of one around it."""
    return _pids("self") == [os.getpid()]


def _pids(name: str) -> list[int]:
    """The numbers of a process in each pid namespace, from that of /proc to its own; empty: it has ended."""
    try:
        lines = Path(f"/proc/{name}/status").read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    return next(([int(pid) for pid in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])


def _is_shown(pid: int) -> bool:
    """Whether /proc shows a process, which it may not do with those of other users (hidepid)."""
    return os.access(f"/proc/{pid}/stat", os.R_OK)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _start_ticks(name: str) -> int | None:
    """The start time of a process; None: it has ended."""
    try:
        text = Path(f"/proc/{name}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in brackets and may itself contain brackets and blanks.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_START_TICKS]) - _ticks_of_namespace()


def _ticks_of_namespace() -> int:
    """By how much the time since boot that is shown in this time namespace is ahead of the machine's."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0  # a kernel without time namespaces
    clocks = {name: (int(seconds), int(ns)) for name, seconds, ns in map(str.split, lines)}
    seconds, ns = clocks["boottime"]
    return (seconds * 10**9 + ns) * os.sysconf("SC_CLK_TCK") // 10**9
