"""Attached processes: each is in a cgroup of the daemon, whose program makes all new connections flows of its job."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import Job
from mltcp.daemon.jobs.peer import Member
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import CGROUP, attached_program, make_cgroup, try_to_remove_cgroup
from mltcp.ebpf.libbpf import BpfError
from mltcp.ebpf.mounts import cgroup_root

_log = logging.getLogger("mltcp.daemon")


@dataclass
class _Attachment:
    job: Job
    cgroup: Path
    held: ExitStack


class Attachments:
    """The cgroups that this daemon has created, by connection."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._held: dict[Member, _Attachment] = {}
        self._leftover: list[Path] = []

    def attach(self, connection: Member, job: Job) -> None:
        """Put the process at the other end of a connection, with its future children, into a cgroup of its job.

        Raises:
            DeniedError: the process does not belong to the peer's user any more.
            NotAvailableError: the kernel cannot do it.
        """
        peer = connection.peer
        with ExitStack() as held:
            try:
                path = _cgroup_of(peer.pid) or make_cgroup(job.name)
                held.callback(self._leave, path)
                held.enter_context(attached_program(job.mechanism.socket_settings(job), path, self._controls))
                # The process is moved by its pid, which may have been reused: it must still belong to the same user.
                if os.stat(f"/proc/{peer.pid}").st_uid != peer.uid:
                    raise DeniedError(f"process {peer.pid} is not {peer.user}'s")
                (path / "cgroup.procs").write_text(str(peer.pid))
            except (OSError, BpfError) as error:
                raise NotAvailableError(f"process {peer.pid} cannot be attached: {error}") from None
            self._held[connection] = _Attachment(job, path, held.pop_all())
        _log.info("%s: new connections of %s are its flows, in cgroup %s", job, peer, path.name)

    def leave(self, connection: Member) -> None:
        """End the attachment of a closed connection."""
        attachment = self._held.pop(connection, None)
        if attachment is not None:
            attachment.held.close()

    def end(self, job: Job) -> None:
        """End all attachments of a job."""
        for connection in [each for each, held in self._held.items() if held.job is job]:
            self.leave(connection)

    def close(self) -> None:
        """End all attachments."""
        for connection in list(self._held):
            self.leave(connection)
        self.remove_empty_cgroups()

    def remove_empty_cgroups(self) -> None:
        """Remove cgroups of ended attachments that processes had not left before."""
        self._leftover = [path for path in self._leftover if not try_to_remove_cgroup(path)]

    def _leave(self, path: Path) -> None:
        if not try_to_remove_cgroup(path):
            self._leftover.append(path)


def _cgroup_of(pid: int) -> Path | None:
    """The cgroup into which a former daemon has put a process, to be used again."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        place = next(line[3:] for line in lines if line.startswith("0::"))
        path = cgroup_root() / place.lstrip("/")
    except (OSError, StopIteration, MltcpError):
        return None
    return path if path.parent == cgroup_root() / CGROUP else None
