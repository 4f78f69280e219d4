"""Processes whose new connections are all their job's: each is in a cgroup of the daemon's, with a program on it."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import KERNEL, NONE, TC, Job
from mltcp.daemon.jobs.paced import MARK
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import CGROUP, Membership, attached_program, make_cgroup, try_to_remove_cgroup
from mltcp.ebpf.libbpf import BpfError
from mltcp.ebpf.mounts import cgroup_root

if TYPE_CHECKING:
    from mltcp.daemon.service.server import Connection

_log = logging.getLogger("mltcp.daemon")


class KernelNumbers(Protocol):
    """Gives a job its entry in the kernel: :class:`mltcp.daemon.jobs.job_manager.Host`."""

    def kernel_number(self, job: Job) -> int:
        """The job's number there."""


@dataclass
class _Attachment:
    job: Job
    cgroup: Path
    held: ExitStack


class Attachments:
    """The cgroups of this daemon."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._held: dict[Connection, _Attachment] = {}
        self._leftover: list[Path] = []
        self.numbers: KernelNumbers | None = None

    def attach(self, connection: Connection, job: Job) -> None:
        """Put the process at the other end of a connection, and all it will start, into a cgroup of its job.

        Raises:
            DeniedError: the process is not the peer's own any more.
            NotAvailableError: the kernel cannot do it.
        """
        peer = connection.peer
        with ExitStack() as held:
            try:
                path = _cgroup_of(peer.pid) or make_cgroup(job.name)
                held.callback(self._leave, path)
                held.enter_context(attached_program(self._membership(job), path, self._controls))
                # By its number it is moved, so it must still be the one that asked: a user moves his own only.
                if os.stat(f"/proc/{peer.pid}").st_uid != peer.uid:
                    raise DeniedError(f"process {peer.pid} is not {peer.user}'s")
                (path / "cgroup.procs").write_text(str(peer.pid))
            except (OSError, BpfError) as error:
                raise NotAvailableError(f"process {peer.pid} cannot be attached: {error}") from None
            self._held[connection] = _Attachment(job, path, held.pop_all())
        _log.info("%s: new connections of %s are its flows, in cgroup %s", job, peer, path.name)

    def _membership(self, job: Job) -> Membership:
        control = "" if job.control == NONE else job.control
        if job.how == KERNEL and self.numbers is not None:
            return Membership(self.numbers.kernel_number(job), control)
        return Membership(0, control, MARK | job.number if job.how == TC else 0)

    def leave(self, connection: Connection) -> None:
        """A connection is gone, and its attachment with it."""
        attachment = self._held.pop(connection, None)
        if attachment is not None:
            attachment.held.close()

    def end(self, job: Job) -> None:
        """A job is over: its processes' new connections are theirs alone."""
        for connection in [each for each, held in self._held.items() if held.job is job]:
            self.leave(connection)

    def close(self) -> None:
        """The daemon ends."""
        for connection in list(self._held):
            self.leave(connection)
        self.tidy()

    def tidy(self) -> None:
        """Remove the cgroups that processes had not left yet."""
        self._leftover = [path for path in self._leftover if not try_to_remove_cgroup(path)]

    def _leave(self, path: Path) -> None:
        if not try_to_remove_cgroup(path):
            self._leftover.append(path)


def _cgroup_of(pid: int) -> Path | None:
    """The cgroup that a former daemon has put a process into, to go on with."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        place = next(line[3:] for line in lines if line.startswith("0::"))
        path = cgroup_root() / place.lstrip("/")
    except (OSError, StopIteration, MltcpError):
        return None
    return path if path.parent == cgroup_root() / CGROUP else None
