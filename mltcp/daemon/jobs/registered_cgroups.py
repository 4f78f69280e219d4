"""Cgroups that root has registered for a job, such as those of a batch system's steps: their new connections are flows
of the job.

The cgroup belongs to whoever has made it. Nothing is moved into it, out of it or below it, and it is never removed, so
that its limits, its accounting and its end stay as they are. A registration ends with the last process in the cgroup or
with the cgroup itself. It outlives the daemon: the next one finds it in a file.
"""

from __future__ import annotations

import json
import logging
import select
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mltcp.core.atomic_files import write_atomically
from mltcp.core.cgroups import path_of_cgroup
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError, shown
from mltcp.core.processes import boot_id
from mltcp.daemon.jobs.job import Job, Peer
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached_program
from mltcp.ebpf.libbpf import BpfError

_log = logging.getLogger("mltcp.daemon")

STATE_FILE = "registered-cgroups.json"
_EVENTS = "cgroup.events"


@dataclass(frozen=True)
class RegisteredCgroup:
    """A cgroup as a member of a job.

    Attributes:
        peer: the process that has registered it.
        name: its path below the root of the hierarchy, as /proc/PID/cgroup has it.
        inode: of its directory, which no later cgroup of that name has.
    """

    peer: Peer
    name: str
    inode: int

    @classmethod
    def present(cls, peer: Peer, name: str) -> RegisteredCgroup:
        """The cgroup of that name now.

        Raises:
            UsageError: the name is malformed, or there is no such cgroup.
        """
        parts = name.split("/")
        if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
            raise UsageError(
                f"cgroup: expected a path below the root, as in /proc/PID/cgroup, got {shown(name)}"
            )
        try:
            return cls(peer, name, path_of_cgroup(name).stat().st_ino)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cgroup: expected one that exists, got {shown(name)}: {reason}") from None

    @property
    def path(self) -> Path:
        """Its directory."""
        return path_of_cgroup(self.name)

    def is_populated(self) -> bool | None:
        """Whether a process is in it or below it; None: it is gone."""
        try:
            if self.path.stat().st_ino != self.inode:
                return None
            return "populated 1" in (self.path / _EVENTS).read_text().splitlines()
        except OSError:
            return None


@dataclass
class _Held:
    job: Job
    request: Mapping[str, Any]
    open: ExitStack
    events: BinaryIO
    entry: int
    has_begun: bool = False


@dataclass(frozen=True)
class LeftCgroup:
    """A registration that a former daemon has left.

    Attributes:
        request: the fields of the request that made it.
        inode: of the cgroup at that time.
        entry: the number of its job in the kernel; 0: none.
        has_begun: whether a process has been in it.
    """

    request: Mapping[str, Any]
    inode: int
    entry: int
    has_begun: bool


class RegisteredCgroups:
    """The registered cgroups, and the file that the next daemon finds them in.

    Args:
        controls: that are loaded.
        directory: of the file; None: there is none.
    """

    def __init__(self, controls: Controls, directory: Path | None = None) -> None:
        self._controls = controls
        self._state = None if directory is None else directory / STATE_FILE
        self._held: dict[RegisteredCgroup, _Held] = {}

    def __iter__(self) -> Iterator[RegisteredCgroup]:
        return iter(list(self._held))

    def named(self, name: str) -> RegisteredCgroup | None:
        """The registered cgroup of that name."""
        return next((each for each in self._held if each.name == name), None)

    def job_of(self, cgroup: RegisteredCgroup) -> Job | None:
        """The job that a cgroup is registered for."""
        held = self._held.get(cgroup)
        return None if held is None else held.job

    def attach(
        self, cgroup: RegisteredCgroup, job: Job, request: Mapping[str, Any], has_begun: bool = False
    ) -> None:
        """Make the new connections of a cgroup flows of a job.

        Args:
            request: the fields by which the next daemon makes the registration again.
            has_begun: whether a process is known to have been in it.

        Raises:
            NotAvailableError: the kernel refuses.
        """
        with ExitStack() as closed_on_failure:
            try:
                events = closed_on_failure.enter_context(open(cgroup.path / _EVENTS, "rb", buffering=0))
                events.read()  # from here on, changes are told
                settings = job.mechanism.socket_settings(job)
                closed_on_failure.enter_context(attached_program(settings, cgroup.path, self._controls))
            except (OSError, BpfError) as error:
                raise NotAvailableError(f"cgroup {cgroup.name} cannot be attached: {error}") from None
            begun = has_begun or cgroup.is_populated() is True
            still_open = closed_on_failure.pop_all()
        self._held[cgroup] = _Held(job, dict(request), still_open, events, settings.number, begun)
        self._save()
        _log.info(
            "%s: new connections in cgroup %s are its flows, asked for by %s", job, cgroup.name, cgroup.peer
        )

    def detach(self, cgroup: RegisteredCgroup) -> None:
        """End a registration; the connections and the processes of the cgroup go on."""
        held = self._held.pop(cgroup, None)
        if held is not None:
            held.open.close()
            self._save()

    def end(self, job: Job) -> None:
        """End all registrations for a job."""
        for cgroup in [each for each, held in self._held.items() if held.job is job]:
            self.detach(cgroup)

    def over(self) -> list[RegisteredCgroup]:
        """The cgroups that are gone, or whose last process has ended. One that has had none yet is waited for."""
        found, begun = [], False
        for cgroup, held in self._held.items():
            if not held.has_begun and _has_changed(held.events):
                held.has_begun = begun = True
            populated = cgroup.is_populated()
            if populated is None or (held.has_begun and not populated):
                found.append(cgroup)
        if begun:
            self._save()
        return found

    def left(self) -> list[LeftCgroup]:
        """The registrations that a former daemon has left since the host was started."""
        if self._state is None:
            return []
        try:
            document = json.loads(self._state.read_bytes())
            if document["boot"] != boot_id():
                return []
            return [_left(each) for each in document["cgroups"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("%s cannot be read, registered cgroups are forgotten: %r", self._state, error)
            return []

    def close(self) -> None:
        """Detach the programs; the registrations stay in the file."""
        for held in self._held.values():
            held.open.close()
        self._held.clear()

    def _save(self) -> None:
        if self._state is None:
            return
        cgroups = [
            {
                "request": held.request,
                "inode": cgroup.inode,
                "entry": held.entry,
                "has_begun": held.has_begun,
            }
            for cgroup, held in self._held.items()
        ]
        try:
            # Not durable: after a crash of the host there are no such cgroups.
            content = json.dumps({"boot": boot_id(), "cgroups": cgroups}).encode()
            write_atomically(self._state, content, durable=False)
        except MltcpError as error:
            _log.error("a restarted daemon will not know the registered cgroups: %s", error)


def _has_changed(events: BinaryIO) -> bool:
    """Whether what a cgroup.events says has changed since it was read, be it for a moment (cgroup-v2.rst)."""
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    return bool(poll.poll(0))


def _left(document: Mapping[str, Any]) -> LeftCgroup:
    request, inode, entry, begun = (document[name] for name in ("request", "inode", "entry", "has_begun"))
    return LeftCgroup(dict(request), int(inode), int(entry), bool(begun))
