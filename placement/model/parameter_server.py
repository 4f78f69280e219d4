"""Asynchronous SGD with a parameter server, as the HELL paper models it, for executors that run whole jobs.

Each GPU is a worker with one mini-batch in flight, wherever it is placed: the links of the server are the only ones
that are shared. Neighbours make no difference. Source: Lin et al., "A model-based approach to streamlining
distributed training for asynchronous SGD", MASCOTS 2018, Sections III and V-B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_S
from placement.model.queueing import Method, method_named, throughputs
from placement.model.service_times import DEFAULT_SHARING, LinkSharing, ServiceTimes
from placement.model.throughput import PS_PER_S, GpusByNode, Neighbour, Workload, gpus_of

_FIRST_TABLE = 64


class ServerNode(StrEnum):
    """Whether the parameter server takes one of a job's GPUs."""

    FREE = "free"
    """X(w) is that of w workers."""
    CHARGED = "charged"
    """X(w) is that of w - 1 workers, and X(1) that of one."""


@dataclass(frozen=True)
class ParameterServer:
    """The parameter server model.

    Attributes:
        link_bytes_per_s: of the server, in each direction.
        server_parameters_per_s: to how many parameters the server applies a gradient in a second.
        method: of solving the queueing network.
        server_node: whether the server takes a GPU.
        servers: m, the number of parameter servers.
        sharing: g of the hybrid method.

    Raises:
        UsageError: a rate or the number of servers is less than 1, or an unknown method.
    """

    link_bytes_per_s: int = 125_000_000
    server_parameters_per_s: int = 614_500_000_000
    method: Method = Method.HYBRID
    server_node: ServerNode = ServerNode.FREE
    servers: int = 1
    sharing: LinkSharing = DEFAULT_SHARING
    _known: dict[ServiceTimes, list[Fraction]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "server_parameters_per_s", "servers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        method_named(self.method)
        if self.server_node not in list(ServerNode):
            raise UsageError(f"server_node: expected {', '.join(ServerNode)}, got {shown(self.server_node)}")

    uses_neighbours: ClassVar[bool] = False

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`: X(w) batches a second."""
        gpus = gpus_of(allocation)
        workers = max(1, gpus - 1) if self.server_node == ServerNode.CHARGED else gpus
        return workload.batch * self._batches_per_ns(self.service(workload), workers)

    def service(self, workload: Workload) -> ServiceTimes:
        """S^W = T_cal, S^U = S^D = 4 bytes a parameter at the rate of the link, and S^S."""
        link_s = BYTES_PER_PARAMETER * workload.parameters / self.link_bytes_per_s
        server_s = workload.parameters / self.server_parameters_per_s
        return ServiceTimes(workload.compute_ns / NS_PER_S, link_s, server_s, link_s)

    def _batches_per_ns(self, service: ServiceTimes, workers: int) -> Fraction:
        """X(K), as if batches left in whole picoseconds, so that it is the same fraction everywhere."""
        known = self._known.setdefault(service, [])
        if len(known) < workers:
            most = max(workers, 2 * len(known), _FIRST_TABLE)
            rates = throughputs(service, most, method=self.method, servers=self.servers, sharing=self.sharing)
            known[:] = [Fraction(PS_PER_S // NS_PER_S, round(PS_PER_S / rate)) for rate in rates.tolist()]
        return known[workers - 1]
