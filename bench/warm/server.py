"""The process that is forked: it imports what it is told to, and forks programs for the process that started it.

Run as ``python -m bench.warm.server DESCRIPTOR ROOM``: one end of a pair of sockets, and an argument over which the
command lines of programs are written. It has one thread. A program becomes a child of the process that asked for it,
which must be a subreaper when it asks.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from bench.warm.program import Start, begin, forget_the_parent

MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 64


@dataclass(frozen=True)
class ForkRequest:
    """A program to fork.

    Attributes:
        start: how; its `kept` descriptors come with the request, after those of the standard streams.
        modules: imported before the fork.
        ignored: the signals that it ignores.
        blocked: the signals that it has blocked.
        priority: its niceness.
        directory: its working directory, unless `start` names one.
    """

    start: Start
    modules: tuple[str, ...]
    ignored: frozenset[int]
    blocked: frozenset[int]
    priority: int
    directory: str


def serve(connection: socket.socket) -> None:
    """Fork what is asked for until the other end is closed."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, _MOST_DESCRIPTORS)
        if not data:
            return
        request = pickle.loads(data)
        _import(request.modules)
        pid = _fork(request, descriptors)
        for each in descriptors:
            os.close(each)
        connection.send(str(pid).encode())


def _import(modules: Sequence[str]) -> None:
    if set(modules) - set(sys.modules):
        for name in modules:
            importlib.import_module(name)
        # A full collection would copy every page that the programs share with this process.
        gc.collect()
        # Some of the modules do something at exit that others, which are imported for other programs, know nothing of.
        forget_the_parent()


def _fork(request: ForkRequest, descriptors: Sequence[int]) -> int:
    """Fork the program as an orphan, which the kernel gives to the subreaper; its pid."""
    told, tell = os.pipe()
    orphaned, let_go = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid:
                os.write(tell, str(pid).encode())
                os._exit(0)
            os.close(let_go)
            os.read(orphaned, 1)
            _become(request, descriptors)
        finally:
            os._exit(255)
    os.close(tell)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32))
    for each in (told, orphaned, let_go):
        os.close(each)
    return pid


def _become(request: ForkRequest, descriptors: Sequence[int]) -> NoReturn:
    os.setpriority(os.PRIO_PROCESS, 0, request.priority)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):  # two of the C library's own
            signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    os.chdir(request.directory)
    begin(replace(request.start, streams=_in_place(descriptors, request.start.kept)))


def _in_place(descriptors: Sequence[int], kept: Sequence[int]) -> tuple[int, int, int]:
    """Give the descriptors that are kept their numbers; returns the standard streams."""
    first_free = max([2, *kept, *descriptors]) + 1
    copies: list[int] = []
    for each in descriptors:
        copies.append(os.dup2(each, first_free + len(copies), inheritable=False))
    for number, copy in zip(kept, copies[3:], strict=True):
        os.dup2(copy, number, inheritable=True)
    return copies[0], copies[1], copies[2]


if __name__ == "__main__":
    # A terminal's Ctrl-C is for the process that started this one, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
