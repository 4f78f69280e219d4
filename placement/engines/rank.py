"""The wrapper process of a rank: keeps its output in a log, forwards signals, and reports its exit status.

torchrun starts it as ``python -P -m placement.engines.rank``. What to run it gets from the launcher, to which it
connects, because torchrun would replace what looks like a variable in arguments. It imports next to nothing, as there
is one per rank. The rank ends with its wrapper, and gets signals from the wrapper only, each of them once.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mltcp.core import processes
from mltcp.core.accounts import peer_credentials
from placement.engines.bounded_log import BoundedLog

REPORTS = "MLTCP_ENGINE_REPORTS"
"""The variable with the name of the launcher's socket; the rank itself does not get it."""

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CANNOT_RUN = 127
_STANDARD = (1, 2)
"""The descriptors of standard output and standard error."""

_PIPE_BYTES = 1 << 20


def main() -> None:
    """Run the rank, and exit with its status or signal."""
    launcher = os.environ.pop(REPORTS)
    number = int(os.environ["RANK"])
    processes.end_with(os.getppid())
    connection = _connected(launcher)
    task = _asked(connection, number)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child, output = _started(task["command"])
    forwarded = _pass_signals_on(child, connection)
    with closing(BoundedLog(Path(task["logs"], log_name(number)), task["log_bytes"])) as log:
        _copy(output, child, log)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _report(connection, {"status": status, "signalled": bool(forwarded)})
    connection.close()
    processes.end_as(status)


def log_name(rank: int) -> str:
    """The name of a rank's log file."""
    return f"rank-{rank}.log"


def _connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"\0{name}")
    if peer_credentials(connection)[1] != os.geteuid():
        sys.exit("the launcher is gone, and another account has taken the name of its socket")
    return connection


def _asked(connection: socket.socket, number: int) -> dict[str, Any]:
    """The launcher's task for the rank: its command, the directory of logs, and the most that its log may have."""
    connection.sendall(json.dumps({"rank": number}).encode() + b"\n")
    with connection.makefile("rb") as answers:
        line = answers.readline()
    if not line:
        sys.exit("the launcher has not said what to run")
    task: dict[str, Any] = json.loads(line)
    return task


def _started(command: Sequence[str]) -> tuple[int, int]:
    """The pid of the rank, and the descriptor of the pipe into which it prints."""
    me, own = os.getpid(), [os.dup(standard) for standard in _STANDARD]
    output, into = os.pipe()
    _print_to(into, into)
    child = os.fork()
    if child == 0:
        _become(command, me)
    _print_to(*own)
    return child, output


def _print_to(*descriptors: int) -> None:
    for standard, descriptor in zip(_STANDARD, descriptors, strict=True):
        os.dup2(descriptor, standard)
    for descriptor in set(descriptors):
        os.close(descriptor)


def _become(command: Sequence[str], parent: int) -> None:
    # In its own process group, it gets signals for the wrapper's group from the wrapper only.
    os.setpgid(0, 0)
    processes.end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        os.write(2, f"cannot run {command[0]!r}: {why}\n".encode())
        os._exit(_CANNOT_RUN)


def _pass_signals_on(child: int, connection: socket.socket) -> list[int]:
    """Forward signals to the rank from now on, and report the first; the list collects those that were forwarded."""
    forwarded: list[int] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        forwarded.append(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)
        if len(forwarded) == 1:
            _report(connection, {"signalled": True})

    for number in _PASSED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    return forwarded


def _copy(output: int, child: int, log: BoundedLog) -> None:
    """Copy what is printed into the log until the rank has ended; what it has started may still hold its output."""
    with suppress(OSError):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    ended = os.pidfd_open(child)
    waiting = select.poll()
    for each in (output, ended):
        waiting.register(each, select.POLLIN)
    while ended not in (ready := [number for number, _ in waiting.poll()]):
        if output in ready:
            data = os.read(output, _PIPE_BYTES)
            if not data:
                waiting.unregister(output)
            log.write(data)
    left = array.array("i", [0])
    fcntl.ioctl(output, termios.FIONREAD, left)
    if left[0]:
        log.write(os.read(output, left[0]))


def _report(connection: socket.socket, message: dict[str, Any]) -> None:
    # The launcher may have ended, and then needs no report.
    with suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
