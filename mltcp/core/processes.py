"""Processes: death signals, subreapers and guards (prctl(2)), start times and descendants (/proc), descriptors.

It imports the standard library only, because the processes on hosts and around ranks must start fast.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STATE, _PARENT, _START_TIME = 0, 1, 19  # fields 3, 4 and 22 of /proc/PID/stat, counted from the state on
_ENDED = ("Z", "X")
_PASSES = 50
"""How often new descendants are looked for, before those that were found are killed."""


def boot_id() -> str:
    """The identity of this machine since it was started."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def pid_namespace() -> int:
    """The identity of the PID namespace, whose process numbers differ from those of other containers."""
    return os.stat("/proc/self/ns/pid").st_ino


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, with pid ``parent``, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def end_as(status: int) -> NoReturn:
    """End this process as another one has ended: with its exit status, or by the signal -`status`."""
    if status < 0:
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


def adopt_orphans() -> None:
    """Become the subreaper, and so the parent of every descendant whose own parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def fork_under_guard(at_the_end: Callable[[], object] = lambda: None) -> int:
    """Go on as the child of this process, which from now on only guards it; returns the guard's pid.

    When the child has ended, by whatever signal, the guard kills all that it has started, calls `at_the_end`, and ends
    as the child did.
    SIGTERM has the guard kill the child as well. A child that is to end with its guard has to see to that itself.
    """
    guard = os.getpid()
    adopt_orphans()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return guard
    # A handle never is another process, though the child may be reaped when SIGTERM comes.
    handle = os.pidfd_open(child)

    def kill_child(*_: object) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill_child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while True:
        # Orphans of a child that does not adopt them itself are reaped here.
        pid, status = os.wait()
        if pid == child:
            break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing more to kill than what is being killed
    kill_descendants()
    at_the_end()
    end_as(os.waitstatus_to_exitcode(status))


def start_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot, which tells reused pids apart; None if it has ended."""
    fields = _stat(pid)
    return None if fields is None or fields[_STATE] in _ENDED else int(fields[_START_TIME])


def parent_of(pid: int) -> int | None:
    """The pid of a process's parent; None: there is no such process."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


def kill_descendants() -> None:
    """Kill and reap all descendants of this process, which must be a subreaper."""
    while True:
        kill_below(os.getpid())
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def kill_below(ancestor: int) -> None:
    """Kill all descendants of a process that it has now.

    They are stopped first: those that do nothing but fork would else outrun this, and one that is stopped still counts
    against the limit of processes that theirs is.
    """
    stopped: set[int] = set()
    for _ in range(_PASSES):
        new = [pid for pid in descendants(ancestor) if pid not in stopped]
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped.update(new)
    for pid in stopped:
        send(pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended or may not be sent one, as one of another account."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(ancestor: int) -> Iterator[int]:
    """The pids of a process's children, their children, and so on, that have not ended, as /proc has them now."""
    children: dict[int, list[int]] = defaultdict(list)
    ended = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            children[int(fields[_PARENT])].append(int(name))
            if fields[_STATE] in _ENDED:
                ended.add(int(name))
    waiting = [ancestor]
    while waiting:
        found = children[waiting.pop()]
        waiting += found
        yield from (pid for pid in found if pid not in ended)


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            # The command name is in parentheses, and may contain parentheses and blanks itself.
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


_MOST_OPEN = 1 << 16


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit; returns the number to use, at most `_MOST_OPEN`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, _MOST_OPEN)
