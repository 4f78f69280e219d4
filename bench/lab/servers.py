"""The servers of a lab as the hosts of an engine, and the addresses of the engine's jobs there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.placement import label_of
from bench.lab.topology import INTERFACE, MAX_JOBS
from mltcp.core.errors import MltcpError
from placement.engines.hosts import Endpoint, Host

_LOOPBACK = Endpoint("127.0.0.1", "lo")


def engine_hosts(lab: Lab) -> tuple[Host, ...]:
    """The servers of a running lab, as hosts that processes enter by ``nsenter``.

    ``ip netns exec`` would hide the cgroup file systems.
    """
    return tuple(
        Host(
            name=server.name,
            address=server.address,
            interface=INTERFACE,
            enter=("nsenter", f"--net={namespaces.NAMESPACES / lab.namespace(server.name)}"),
            slots=server.slots,
        )
        for server in lab.topology.servers
    )


@dataclass(frozen=True)
class Stay:
    """A job on the lab's servers.

    Attributes:
        job_id: the engine's name of the job.
        number: the lab's number of the job, under which it counts the job's bytes; reused by later jobs.
        servers: the server of each rank.
        from_ns: when its addresses were added, CLOCK_MONOTONIC.
        to_ns: when they were removed; None: they still exist.
    """

    job_id: str
    number: int
    servers: tuple[str, ...]
    from_ns: int
    to_ns: int | None = None


class LabNetwork:
    """Allocates a lab number to every job that an engine starts, and that number's addresses to the job's ranks.

    A job on a single server gets no number: its ranks use that server's loopback and no trunk. Thread-safe.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = Lock()
        self._present: dict[str, Stay | None] = {}
        self._past: list[Stay] = []
        self._last = MAX_JOBS - 1

    @property
    def stays(self) -> tuple[Stay, ...]:
        """All jobs that have had a number, in the order in which they were placed."""
        with self._lock:
            present = [stay for stay in self._present.values() if stay is not None]
            return tuple(sorted([*self._past, *present], key=lambda stay: stay.from_ns))

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """Place a job on the lab's servers.

        Raises:
            MltcpError: the job is attached already, all numbers are in use, or the lab refuses.
        """
        with self._lock:
            if job_id in self._present:
                raise MltcpError(f"job {job_id} is attached to the lab already")
            if len(set(hosts)) == 1:
                self._present[job_id] = None
                return [_LOOPBACK] * len(hosts)
            number = self._free_number(job_id)
            try:
                addresses = self._lab.place(number, hosts)
            except MltcpError as error:
                raise MltcpError(f"job {job_id}: {error}") from error
            self._last = number
            self._present[job_id] = Stay(job_id, number, tuple(hosts), time.monotonic_ns())
            return [Endpoint(address, label_of(number)) for address in addresses]

    def detach(self, job_id: str) -> None:
        """Remove a job from the lab's servers and free its number.

        Raises:
            MltcpError: the lab refuses.
        """
        with self._lock:
            stay = self._present.pop(job_id)
            if stay is None:
                return
            self._past.append(replace(stay, to_ns=time.monotonic_ns()))
            try:
                self._lab.unplace(stay.number)
            except MltcpError as error:
                raise MltcpError(f"job {job_id}: {error}") from error

    def _free_number(self, job_id: str) -> int:
        # Round robin, so that the last packets of a job are not counted for the next job.
        taken = {stay.number for stay in self._present.values() if stay is not None}
        taken.update(self._lab.topology.jobs)
        for step in range(1, MAX_JOBS + 1):
            number = (self._last + step) % MAX_JOBS
            if number not in taken:
                return number
        raise MltcpError(f"job {job_id}: all {MAX_JOBS} job numbers of the lab are in use")
