"""Files by which a job and the engine inform each other, without Slurm, in the directory of the job's logs.

slurmctld writes its state down every five seconds. One that is killed has forgotten what it accepted, started and saw
end since: it knows no such job, or takes an ended one for waiting, running or failed. So that no job is lost and none
runs twice, the batch script notes that all ranks have ended well, and every node shows that it lives; and the engine
notes that it has given a launch up, which then begins no more.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError

ENDED = "ended"
"""The file with the exit status of the batch script of a job whose ranks have all exited with 0."""

EXIT, ALIVE = "exit-", "alive-"
"""The beginnings of the names of the files with the exit statuses of the nodes, and with their signs of life."""

FAILURE = "failure-"
"""The beginning of the names of the files that say which rank of a node has failed first."""

GIVEN_UP = "given-up"
"""The file whose presence says that the launch is not to run, or not any more; it has the reason."""

BEAT_S = 2.0

_LOCK_S = 60.0
_TRY_AGAIN_S = 1.0


def ended_status(directory: Path) -> int | None:
    """The exit status of the batch script of a job whose ranks have all exited with 0; None: they have not."""
    try:
        return int((directory / ENDED).read_text())
    except (OSError, ValueError):
        return None


def give_up(directory: Path, why: str) -> None:
    """Have the launch end itself if it runs, and not begin if it does not; the next engine finds why."""
    write_atomically(directory / GIVEN_UP, why.encode())


def given_up(directory: Path) -> str | None:
    """Why the launch is to end itself; None: it is not."""
    try:
        return (directory / GIVEN_UP).read_text()
    except OSError:
        return None


def beat(directory: Path, number: int) -> None:
    """Show that the ``number``-th node of the job lives; to be called every `BEAT_S`."""
    with suppress(OSError):  # a disk that is full for a while ends no job
        (directory / f"{ALIVE}{number}").write_text(str(time.monotonic_ns()))


def note_exit(directory: Path, number: int, status: int, patience_s: float = 0.0) -> None:
    """Say how the ``number``-th node of the job has ended.

    Args:
        directory: of the job's logs.
        number: of the node.
        status: its exit status.
        patience_s: for how long it is tried again where the disk is full, or away.

    Raises:
        MltcpError: it could not be written.
    """
    end_s = time.monotonic() + patience_s
    while True:
        try:
            write_atomically(directory / f"{EXIT}{number}", f"{status}\n".encode(), durable=False)
            return
        except MltcpError:
            if time.monotonic() >= end_s:
                raise
        time.sleep(_TRY_AGAIN_S)


def has_ended_well(directory: Path, number: int) -> bool:
    """Whether all ranks of the ``number``-th node of the job have exited with 0."""
    try:
        return (directory / f"{EXIT}{number}").read_text() == "0\n"
    except OSError:
        return False


def ended_well(directory: Path) -> int:
    """The number of nodes of the job whose ranks have all exited with 0."""
    count = 0
    for path in directory.glob(f"{EXIT}*"):
        with suppress(OSError):
            count += path.read_text() == "0\n"
    return count


def beats(directory: Path) -> tuple[str, ...]:
    """The nodes' last signs of life, a value that changes while one of them lives."""
    found = []
    for path in sorted(directory.glob(f"{ALIVE}*")):
        with suppress(OSError):
            found.append(path.read_text())
    return tuple(found)


def node_lock(directory: Path, number: int) -> socket.socket:
    """Wait until no other process of this machine runs the ``number``-th node of the launch; held until it is closed.

    Raises:
        TimeoutError: another one runs it for a minute more.
    """
    name = hashlib.sha256(f"{os.fspath(directory)}:{number}".encode()).hexdigest()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end_s = time.monotonic() + _LOCK_S
    while True:
        try:
            lock.bind(f"\0mltcp-step-{name}")
            return lock
        except OSError:
            if time.monotonic() > end_s:
                lock.close()
                raise TimeoutError(f"{directory}: node {number} of this launch runs already") from None
        time.sleep(0.1)
