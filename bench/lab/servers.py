"""The servers of a lab as the hosts of an engine, and the network that the engine's jobs get there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.placing import label_of
from bench.lab.topology import INTERFACE, MAX_JOBS
from mltcp.core.errors import MltcpError
from placement.engines.hosts import Host
from placement.engines.network import Endpoint

_LOOPBACK = Endpoint("127.0.0.1", "lo")


def engine_hosts(lab: Lab) -> tuple[Host, ...]:
    """The servers of a lab that stands, as hosts that are entered by their network namespaces.

    Not by ``ip netns exec``, which would hide the cgroups.
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
        job_id: as the engine calls the job.
        number: as the lab does, and counts its bytes; another job may have it afterwards.
        servers: the server of each rank.
        from_ns: since when it has its addresses, CLOCK_MONOTONIC.
        to_ns: until when; None: it still has them.
    """

    job_id: str
    number: int
    servers: tuple[str, ...]
    from_ns: int
    to_ns: int | None = None


class LabNetwork:
    """Gives every job that an engine starts a number in the lab, and its ranks the addresses of that number.

    A job on one server only gets none: its ranks talk over that server's loopback, and no trunk sees them. Safe to use
    from several threads.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = Lock()
        self._present: dict[str, Stay | None] = {}
        self._past: list[Stay] = []
        self._last = MAX_JOBS - 1

    @property
    def stays(self) -> tuple[Stay, ...]:
        """All jobs that have had a number, in the order of their arrival."""
        with self._lock:
            present = [stay for stay in self._present.values() if stay is not None]
            return tuple(sorted([*self._past, *present], key=lambda stay: stay.from_ns))

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """Place a job on the lab's servers.

        Raises:
            MltcpError: the job is there already, all numbers are in use, or the lab refuses.
        """
        with self._lock:
            if job_id in self._present:
                raise MltcpError(f"job {job_id} is in the lab already")
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
        """Take a job off the lab's servers; its number is free.

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
        # In turn, so that the last packets of a job are not taken for those of the next.
        taken = {stay.number for stay in self._present.values() if stay is not None}
        taken.update(self._lab.topology.jobs)
        for step in range(1, MAX_JOBS + 1):
            number = (self._last + step) % MAX_JOBS
            if number not in taken:
                return number
        raise MltcpError(f"job {job_id}: the lab counts {MAX_JOBS} jobs at a time, and has as many")
