"""The network of a job on an engine's hosts: at which address each of them is reached, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from placement.engines.hosts import Host


@dataclass(frozen=True)
class Endpoint:
    """A host in the network of one job.

    Attributes:
        address: at which the job's other hosts reach it.
        interface: the interface that Gloo and NCCL are to use.
        environment: further variables of the ranks there.
        cgroup: a cgroup v2 directory on the host that the ranks are to be in, or None.
    """

    address: str
    interface: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cgroup: str | None = None


class JobNetwork(Protocol):
    """Gives jobs their network; an engine calls it from several threads."""

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoint of each rank of a job that is about to start; ``hosts`` has the host of each rank.

        Raises:
            MltcpError: it cannot be given one.
        """

    def detach(self, job_id: str) -> None:
        """The job, which has endpoints, is gone from its hosts."""


class HostNetwork:
    """The network that is there: every job uses the address and interface of its host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._endpoints = {host.name: Endpoint(host.address, host.interface) for host in hosts}

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoints of the hosts, the same for every job."""
        return [self._endpoints[name] for name in hosts]

    def detach(self, job_id: str) -> None:
        """Nothing was given."""
