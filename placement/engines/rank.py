"""The process around a rank: writes its log, tells how it ended, and takes it along when it goes itself.

torchrun starts it as ``python -m placement.engines.rank COMMAND...``; it imports next to nothing, because it is
there once a rank. The rank gets signals from it only, each of them once.
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
"""Where a rank's end is told: the path of a datagram socket."""
LOGS = "MLTCP_ENGINE_LOGS"
"""The directory of the ranks' logs."""

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CANNOT_RUN = 127


def main(command: Sequence[str]) -> None:
    """Run the rank, and end as it ends."""
    reports, logs = os.environ.pop(REPORTS), os.environ.pop(LOGS)
    number = int(os.environ["RANK"])
    _write_to(os.path.join(logs, log_name(number)))
    processes.end_with(os.getppid())
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, me)
    told = _pass_signals_on(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _report(reports, {"rank": number, "status": status, "told": bool(told)})
    _end_as(status)


def log_name(rank: int) -> str:
    """What the log of a rank is called in the directory of logs."""
    return f"rank-{rank}.log"


def _write_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _become(command: Sequence[str], parent: int) -> None:
    # In a process group of its own, signals for the group reach it through its parent only.
    os.setpgid(0, 0)
    processes.end_with(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
        os._exit(_CANNOT_RUN)


def _pass_signals_on(child: int) -> list[int]:
    """Hand signals to the rank from now on; those that were are in the list."""
    told: list[int] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    return told


def _report(path: str, message: dict[str, int]) -> None:
    # Whoever listened may be gone; then nobody needs to know.
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
