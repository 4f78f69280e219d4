"""Networks of jobs on an engine's hosts: the addresses, interfaces and cgroups that the ranks use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from placement.engines.hosts import Host


@dataclass(frozen=True)
class Endpoint:
    """A host in the network of one job.

    Attributes:
        address: the address at which the job's other hosts reach it.
        interface: the interface for Gloo and NCCL.
        environment: further variables of the ranks there.
        cgroup: the directory of the cgroup (v2) that the ranks join; None: they join none.
    """

    address: str
    interface: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cgroup: str | None = None


class JobNetwork(Protocol):
    """Assigns networks to jobs; must be thread-safe."""

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoint of each rank of a job that is about to start; ``hosts`` has the host of each rank.

        Raises:
            MltcpError: no network is available.
        """

    def detach(self, job_id: str) -> None:
        """Release the endpoints of a job that has ended."""


class HostNetwork:
    """The hosts' own network: every job uses the address and interface of its host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._endpoints = {host.name: Endpoint(host.address, host.interface) for host in hosts}

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoints of the hosts, the same for every job."""
        return [self._endpoints[name] for name in hosts]

    def detach(self, job_id: str) -> None:
        """Do nothing, as nothing was allocated."""
