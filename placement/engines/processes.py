"""Process control by prctl(2) and /proc: death signals, subreapers, start times, descendants.

It imports the standard library only, because the processes on hosts and around ranks must start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STATE, _PARENT, _START_TIME = 0, 1, 19  # fields 3, 4 and 22 of /proc/PID/stat, counted from the state on


def boot_id() -> str:
    """The identity of this machine since it was started."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def pid_namespace() -> int:
    """The identity of the PID namespace, whose process numbers differ from those of other containers."""
    return os.stat("/proc/self/ns/pid").st_ino


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, with pid ``parent``, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the subreaper, and so the parent of every descendant whose own parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot, which tells reused pids apart; None if it has ended."""
    fields = _stat(pid)
    return None if fields is None or fields[_STATE] in "ZX" else int(fields[_START_TIME])


def kill_descendants() -> None:
    """Kill and reap all descendants of this process, which must be a subreaper."""
    while True:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def descendants(ancestor: int) -> Iterator[int]:
    """The pids of a process's children, their children, and so on, as /proc has them now."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            children[int(fields[_PARENT])].append(int(name))
    waiting = [ancestor]
    while waiting:
        found = children[waiting.pop()]
        waiting += found
        yield from found


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The command name is in parentheses, and may contain parentheses and blanks itself.
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
