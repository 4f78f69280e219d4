"""The cluster of a run of whole jobs, and its throughput model."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput import ThroughputModel

NODES, GPUS = 4, 4
"""The cluster of the DRS paper: 4 nodes of 4 GPUs."""

_MOST_GPUS = 100_000


@dataclass(frozen=True)
class RatesSettings:
    """The cluster and its throughput model.

    Attributes:
        model: gives the speeds of jobs.
        nodes: of the cluster.
        gpus: of a node.
        restart_ns: the cost c of a restart.

    Raises:
        UsageError: a value is out of range.
    """

    model: ThroughputModel
    nodes: int = NODES
    gpus: int = GPUS
    restart_ns: int = 0

    def __post_init__(self) -> None:
        if min(self.nodes, self.gpus) < 1 or self.nodes * self.gpus > _MOST_GPUS:
            raise UsageError(
                f"nodes and gpus: expected 1 or more, and up to {_MOST_GPUS} GPUs, got {self.nodes} and {self.gpus}"
            )
        if self.restart_ns < 0:
            raise UsageError(f"restart_ns: expected 0 or more, got {self.restart_ns}")

    def cluster(self) -> Cluster:
        """The cluster, with a switch for each node: what schedulers call a rack is a node here."""
        servers = tuple(Server(f"s{node}", (Gpu(),) * self.gpus, f"node{node}") for node in range(self.nodes))
        return Cluster(
            servers, (Switch("core"), *(Switch(f"node{node}", "core") for node in range(self.nodes)))
        )
