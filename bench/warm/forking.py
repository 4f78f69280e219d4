"""Forks a program of Python where ``subprocess`` and ``multiprocessing`` would execute an interpreter.

A process forks only while it has a single thread, and only programs whose modules would be imported alike; every
other program is executed as ever. Processes that were forked do the same in their turn, and where they would execute
a program in their own place they become it.
"""

from __future__ import annotations

import _posixsubprocess
import ctypes
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from bench.warm.program import Program, become, forget_the_parent, read_at_import

ForkExec = Callable[..., int]

execute: ForkExec = _posixsubprocess.fork_exec
_execvp = os.execvp

_SERVES_A_STORE = "torch.distributed.run"
"""It may have one more thread, which serves a store and holds nothing that its ranks use."""


@dataclass(frozen=True)
class Start:
    """How a program is started: the arguments of ``_posixsubprocess.fork_exec`` that matter to a fork.

    Attributes:
        program: it.
        close_others: whether descriptors that may be inherited are closed, but for the standard streams and `kept`.
        kept: descriptors that stay open under their numbers.
        directory: the working directory; None: that of the parent.
        environment: all variables.
        streams: the descriptors that become 0, 1 and 2; -1: that of the parent.
        new_session: whether it gets its own session.
        prepare: called in the child before the program begins.
    """

    program: Program
    close_others: bool
    kept: tuple[int, ...]
    directory: str | None
    environment: dict[str, str]
    streams: tuple[int, int, int]
    new_session: bool
    prepare: Callable[[], Any] | None


def start_of(arguments: Sequence[Any]) -> Start | None:
    """The start that the arguments of ``fork_exec`` describe; None if only an execution can do it."""
    if len(arguments) != 23:  # of a Python that is not known here
        return None
    command, _, close_others, kept, directory, variables, stdin, _, _, stdout, _, stderr = arguments[:12]
    error_pipe, _, new_session, group, gid, groups, uid, umask, prepare, _ = arguments[13:]
    program = Program.of(command)
    if program is None or (group, gid, groups, uid, umask) != (-1, None, None, None, -1):
        return None
    return Start(
        program,
        bool(close_others),
        tuple(
            number for number in kept if number != error_pipe
        ),  # its end tells that the program was executed
        None if directory is None else os.fsdecode(directory),
        dict(os.environ) if variables is None else _decoded(variables),
        (stdin, stdout, stderr),
        bool(new_session),
        prepare,
    )


def _decoded(variables: Iterable[bytes]) -> dict[str, str]:
    return dict(os.fsdecode(each).split("=", 1) for each in variables)


def use(fork_exec: ForkExec) -> ForkExec:
    """Have ``subprocess`` and ``multiprocessing`` start programs with this function; returns that before it."""
    before = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    return before


def fork_or_execute(*arguments: Any) -> int:
    """Like ``fork_exec``, by a fork of this process if that is as good."""
    start = start_of(arguments)
    if start is None or not _may_fork() or read_at_import(start.environment) != read_at_import(os.environ):
        return execute(*arguments)
    pid = os.fork()
    if pid == 0:
        try:
            forget_the_parent()
            begin(start)
        finally:
            os._exit(255)
    return pid


def _may_fork() -> bool:
    threads = len(os.listdir("/proc/self/task"))
    return threads == 1 or (threading.active_count() == 1 and _SERVES_A_STORE in sys.orig_argv[2:4])


def _become_or_execute(file: Any, command: Any) -> NoReturn:
    """Like ``os.execvp``, in place if that is as good."""
    program = Program.of(command)
    if program is None or program.network or len(os.listdir("/proc/self/task")) > 1:
        _execvp(file, command)
    forget_the_parent()
    _close(number for number in _open_descriptors() if not os.get_inheritable(number))
    become(program, dict(os.environ))


def begin(start: Start) -> NoReturn:
    """Arrange descriptors, session and directory of this process, and run the program; does not return."""
    if start.directory is not None:
        os.chdir(start.directory)
    if start.new_session:
        os.setsid()
    _arrange(start.streams)
    if start.prepare is not None:
        start.prepare()
    for number in start.kept:
        os.set_inheritable(number, True)
    _close(
        number
        for number in _open_descriptors()
        if number > 2 and number not in start.kept and (start.close_others or not os.get_inheritable(number))
    )
    if start.program.network is not None:
        _enter(start.program.network)
    use(fork_or_execute)
    os.execvp = _become_or_execute  # type: ignore[assignment]
    become(start.program, start.environment)


def _close(descriptors: Iterable[int]) -> None:
    for each in list(descriptors):
        os.close(each)


def _enter(network: str) -> None:
    """Do as ``nsenter --net=...``."""
    with open(network) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            print(f"nsenter: {network}: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
            os._exit(1)


def _arrange(streams: tuple[int, int, int]) -> None:
    """Make the descriptors 0, 1 and 2 those of `streams`."""
    # Copies above 2 first, of which none is overwritten before it is used.
    copies = [each if each < 0 else _above_two(each) for each in streams]
    for number, each in enumerate(copies):
        if each >= 0:
            os.dup2(each, number, inheritable=True)
            os.close(each)


def _above_two(number: int) -> int:
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)


def _open_descriptors() -> list[int]:
    numbers = map(int, os.listdir("/proc/self/fd"))
    return [number for number in numbers if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.get_inheritable(number)
    except OSError:  # that of the listing
        return False
    return True
