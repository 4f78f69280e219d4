"""Attached processes: each is in a cgroup of its job, whose program makes all new connections flows of the job.

The cgroup is below the one that the process was in. The process makes it itself where it may (in one that is delegated
to its user); elsewhere the daemon does. It stays when the daemon ends, so that the next one finds the job's processes.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.cgroups import cgroup_of
from mltcp.core.errors import NotAvailableError
from mltcp.core.user_lines import of_user
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import Job, Member, Peer
from mltcp.daemon.jobs.job_table import Limits
from mltcp.ebpf.cgroups import (
    is_removed,
    job_cgroup_name,
    make_cgroup,
    move,
    remove_left_cgroups,
    try_to_remove_cgroup,
)
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached_program
from mltcp.ebpf.libbpf import BpfError

_log = logging.getLogger("mltcp.daemon")


MOST_ATTACHED = 1024
"""Attached processes of all users; each takes two of the daemon's descriptors."""

_ATTEMPTS = 5


def most_attached() -> int:
    """How many processes of all users may be attached, by the number of descriptors that the daemon may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_ATTACHED if hard == resource.RLIM_INFINITY else min(MOST_ATTACHED, hard // 16)


@dataclass(frozen=True)
class _Attachment:
    job: Job
    cgroup: Path
    program: ExitStack


class Attachments:
    """The cgroups of attached processes, by connection.

    Args:
        controls: that are loaded.
        most_per_user: how many processes of a user other than root may be attached.
    """

    def __init__(self, controls: Controls, most_per_user: int = Limits().attached) -> None:
        self._most_per_user = most_per_user
        self._most = most_attached()
        self._controls = controls
        self._held: dict[Member, _Attachment] = {}
        self._leftover = remove_left_cgroups()

    def attach(self, connection: Member, job: Job) -> None:
        """Put the process at the other end of a connection, with its future children, into a cgroup of its job.

        Raises:
            DeniedError: the process does not belong to the peer's user any more.
            NotAvailableError: the kernel cannot do it, or the process is in a cgroup of another user, or its user has
                reached the limit.
        """
        peer = connection.peer
        part = peer.part_of(self._most, len(self._held))
        if len(self._held) >= part:
            raise NotAvailableError(f"{part} processes of all users are already attached, the limit")
        held_by_user = sum(each.peer.uid == peer.uid for each in self._held)
        if held_by_user >= self._most_per_user and not peer.is_root:
            raise NotAvailableError(
                f"{peer.user} already has {held_by_user} attached processes, the limit (limits.attached)"
            )
        held = self._held[connection] = self._attached(peer, job)
        where = held.cgroup
        _log.info(
            "%s: new connections of %s are its flows, in cgroup %s",
            job,
            peer,
            where,
            extra=of_user(peer.user),
        )

    def _attached(self, peer: Peer, job: Job, attempts: int = _ATTEMPTS) -> _Attachment:
        """Put a process into the cgroup of its job. Raises as `attach`."""
        name = job_cgroup_name(job.uid, job.name, job.instance)
        with ExitStack() as undone_on_failure:
            try:
                present = cgroup_of(peer.pid)
                # A process that is in its job's cgroup has made it, or a former daemon has.
                path = present if present.name == name else make_cgroup(name, present)
                undone_on_failure.callback(self._remove, path)
                program = undone_on_failure.enter_context(ExitStack())
                settings = job.mechanism.socket_settings(job)
                program.enter_context(attached_program(settings, path, self._controls))
                # The process is moved by its pid, which may have been reused: it must still belong to the same user.
                if os.stat(f"/proc/{peer.pid}").st_uid != peer.uid:
                    raise DeniedError(f"process {peer.pid} is not {peer.user}'s")
                if path != present:
                    move(peer.pid, path)
            except (OSError, BpfError) as error:
                if error.errno == errno.ENOENT and attempts > 1:
                    # Another program took the cgroup, which is empty at first, for one that was left.
                    undone_on_failure.close()
                    return self._attached(peer, job, attempts - 1)
                raise NotAvailableError(f"process {peer.pid} cannot be attached: {error}") from None
            undone_on_failure.pop_all()
        return _Attachment(job, path, program)

    def leave(self, connection: Member) -> None:
        """End the attachment of a closed connection. Processes that outlive it go on in the cgroup above."""
        attachment = self._held.pop(connection, None)
        if attachment is not None:
            attachment.program.close()
            self._remove(attachment.cgroup)

    def end(self, job: Job) -> None:
        """End all attachments of a job."""
        for connection in [each for each, held in self._held.items() if held.job is job]:
            self.leave(connection)

    def close(self) -> None:
        """End all attachments. The processes stay in their cgroups, where the next daemon finds them."""
        for attachment in self._held.values():
            attachment.program.close()
            self._leftover.append(attachment.cgroup)
        self._held.clear()
        self.remove_empty_cgroups()

    def remove_empty_cgroups(self) -> None:
        """Remove cgroups of ended attachments that processes had not left before."""
        used = {attachment.cgroup for attachment in self._held.values()}
        self._leftover = [path for path in self._leftover if path not in used and not is_removed(path)]

    def _remove(self, path: Path) -> None:
        if any(attachment.cgroup == path for attachment in self._held.values()):
            return
        try:
            removed = try_to_remove_cgroup(path)
        except PermissionError:
            return  # its user has made it, and removes it
        if not removed:
            self._leftover.append(path)
