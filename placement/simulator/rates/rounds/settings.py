"""The cluster of a run in rounds, and its throughput model."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput.table import TableModel

NODES, GPUS = 4, 8
"""The cluster of the paper."""

ROUND_S = 300
"""The length of the paper's rounds."""

_MOST_GPUS, _MOST_S = 10_000, 10**8


@dataclass(frozen=True)
class RoundsSettings:
    """The cluster, its throughput model and its rounds.

    Attributes:
        model: gives the speeds of jobs.
        nodes: of the cluster.
        gpus: of a node.
        round_ns: the length of a round.
        restart_ns: the cost c of a restart.

    Raises:
        UsageError: a value is out of range.
    """

    model: TableModel
    nodes: int = NODES
    gpus: int = GPUS
    round_ns: int = ROUND_S * NS_PER_S
    restart_ns: int = 0

    def __post_init__(self) -> None:
        if min(self.nodes, self.gpus) < 1 or self.nodes * self.gpus > _MOST_GPUS:
            raise UsageError(
                f"nodes and gpus: expected 1 or more, and up to {_MOST_GPUS} GPUs, got {self.nodes} and {self.gpus}"
            )
        if not 0 < self.round_ns <= _MOST_S * NS_PER_S:
            raise UsageError(f"round_ns: expected 1 to {_MOST_S} s, got {self.round_ns}")
        if not 0 <= self.restart_ns <= _MOST_S * NS_PER_S:
            raise UsageError(f"restart_ns: expected 0 to {_MOST_S} s, got {self.restart_ns}")

    def cluster(self) -> Cluster:
        """The cluster, with a switch for each node: what schedulers call a rack is a node here."""
        servers = tuple(Server(f"s{node}", (Gpu(),) * self.gpus, f"node{node}") for node in range(self.nodes))
        return Cluster(
            servers, (Switch("core"), *(Switch(f"node{node}", "core") for node in range(self.nodes)))
        )
