"""The wrapper process of a rank: redirects its output to a log, forwards signals, and reports its exit status.

torchrun starts it as ``python -m placement.engines.rank COMMAND...``. It imports next to nothing, because there is one
per rank. The rank ends with its wrapper, and gets signals from the wrapper only, each of them once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from placement.engines import processes

REPORTS = "MLTCP_ENGINE_REPORTS"
"""The variable with the path of the datagram socket to which the exit status of a rank is reported."""

LOGS = "MLTCP_ENGINE_LOGS"
"""The variable with the directory of the ranks' logs."""

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CANNOT_RUN = 127


def main(command: Sequence[str]) -> None:
    """Run the rank, and exit with its status or signal."""
    reports, logs = os.environ.pop(REPORTS), os.environ.pop(LOGS)
    number = int(os.environ["RANK"])
    _write_to(os.path.join(logs, log_name(number)))
    processes.end_with(os.getppid())
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, me)
    forwarded = _pass_signals_on(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _report(reports, {"rank": number, "status": status, "signalled": bool(forwarded)})
    _end_as(status)


def log_name(rank: int) -> str:
    """The name of a rank's log file."""
    return f"rank-{rank}.log"


def _write_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _become(command: Sequence[str], parent: int) -> None:
    # In its own process group, it gets signals for the wrapper's group from the wrapper only.
    os.setpgid(0, 0)
    processes.end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
        os._exit(_CANNOT_RUN)


def _pass_signals_on(child: int) -> list[int]:
    """Forward signals to the rank from now on; the list collects those that were forwarded."""
    forwarded: list[int] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        forwarded.append(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    return forwarded


def _report(path: str, message: dict[str, int]) -> None:
    # The launcher may have ended, and then needs no report.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(message).encode(), path)


def _end_as(status: int) -> None:
    if status < 0:
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


if __name__ == "__main__":
    main(sys.argv[1:])
