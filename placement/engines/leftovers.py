"""What jobs have left on this machine whose launcher is gone: it is found by its cgroup or a variable, and killed.

A launcher that ends kills what its job has started, and so does its guard if it was killed. Only if both were is there
anything for this to find: the next launcher on the host does, and the engine for launchers on its own machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mltcp.core import processes
from mltcp.core.cgroups import cgroup_of
from mltcp.core.errors import NotAvailableError
from mltcp.core.owner import Owner

LAUNCH = "MLTCP_ENGINE_LAUNCH"
"""The variable of all processes of a job with the process that they do not outlive (`Owner`)."""

_PREFIX = "mltcp-job:"
_PASSES = 50
_KILL_S = 5.0
_PAUSE_S = 0.01


class JobCgroup:
    """A cgroup (v2) of a job's processes on this host, in which all of them are killed at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def made(cls, owner: Owner) -> JobCgroup | None:
        """A new one below the cgroup of this process; None if there can be none.

        It takes root or a cgroup that is delegated to this account, cgroup v2, and Linux 5.14.
        """
        above = _own_cgroup()
        if above is None:
            return None
        path = above / f"{_PREFIX}{owner}"
        try:
            path.mkdir()
        except OSError:
            return None
        if not os.access(path / "cgroup.kill", os.W_OK):
            path.rmdir()
            return None
        return cls(path)

    def enter(self) -> None:
        """Move this process into it, if the kernel permits; it is killed with its parent otherwise."""
        with suppress(OSError):
            (self.path / "cgroup.procs").write_text("0")

    def end(self) -> None:
        """Kill all processes in it and below, and remove it."""
        with suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")
        end_s = time.monotonic() + _KILL_S
        while not self._is_removed() and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)

    def _is_removed(self) -> bool:
        with suppress(OSError):
            for directory, _, _ in os.walk(self.path, topdown=False):
                os.rmdir(directory)
        return not self.path.exists()


def kill_leftovers() -> None:
    """Kill the processes on this machine of jobs whose launcher has ended, as far as this account may."""
    above = _own_cgroup()
    if above is not None:
        with suppress(OSError):
            for path in above.glob(f"{_PREFIX}*"):
                if _is_over(path.name.removeprefix(_PREFIX)):
                    JobCgroup(path).end()
    for _ in range(_PASSES):
        found = list(_marked())
        for pid in found:
            processes.send(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(_PAUSE_S)


def _marked() -> Iterator[int]:
    """The processes whose variable names a launcher that has ended."""
    mark = LAUNCH.encode() + b"="
    over: dict[str, bool] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            variables = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue  # it has ended, or is of another account
        for each in variables.split(b"\0") if mark in variables else ():
            if each.startswith(mark):
                owner = os.fsdecode(each.removeprefix(mark))
                if over.setdefault(owner, _is_over(owner)) and processes.start_ticks(int(name)) is not None:
                    yield int(name)
                break


def _is_over(text: str) -> bool:
    owner = Owner.parse(text)
    return owner is not None and not owner.is_alive()


def _own_cgroup() -> Path | None:
    """The directory of the cgroup v2 of this process; None if it is not seen here."""
    with suppress(NotAvailableError):
        return cgroup_of()
    return None
