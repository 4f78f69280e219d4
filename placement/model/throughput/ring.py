"""Synchronous data-parallel training by ring all-reduce, as the DRS paper models it.

Every GPU computes a step on its own batch for T_cal, and then all exchange their gradients, of 4 bytes a parameter, at
the bandwidth of the slowest link of the ring: that inside a node, or that between nodes. Neighbours make no difference.
Source: DRS (Fu, Hu, Li, Journal of Computer Research and Development 60(6), 2023), Equations 2 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import UsageError
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_S
from placement.model.throughput.throughput import GpusByNode, Neighbour, Workload, gpus_of

INSIDE_BYTES_PER_S = 10_000_000_000
"""B_in of the paper: PCIe and QPI."""

BETWEEN_BYTES_PER_S = 6_000_000_000
"""B_out of the paper: InfiniBand."""


@dataclass(frozen=True)
class RingAllReduce:
    """The ring all-reduce model.

    Attributes:
        inside_bytes_per_s: B_in, inside a node.
        between_bytes_per_s: B_out, between nodes.

    Raises:
        UsageError: a bandwidth is less than 1 byte a second.
    """

    inside_bytes_per_s: int = INSIDE_BYTES_PER_S
    between_bytes_per_s: int = BETWEEN_BYTES_PER_S

    def __post_init__(self) -> None:
        for name in ("inside_bytes_per_s", "between_bytes_per_s"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    @property
    def uses_neighbours(self) -> bool:
        """No."""
        return False

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`: N batches every T_step."""
        gpus = gpus_of(allocation)
        return Fraction(gpus * workload.batch, self.step_ns(workload, gpus, len(allocation) == 1))

    def step_ns(self, workload: Workload, gpus: int, one_node: bool) -> int:
        """T_step = T_cal + T_comm (Equation 2), in whole ns."""
        return workload.compute_ns + self.communication_ns(workload, gpus, one_node)

    def communication_ns(self, workload: Workload, gpus: int, one_node: bool) -> int:
        """T_comm = 2 (N - 1) / N * bytes / B (Equation 5), rounded half up to whole ns."""
        bandwidth = self.inside_bytes_per_s if one_node else self.between_bytes_per_s
        size = BYTES_PER_PARAMETER * workload.parameters
        numerator, denominator = 2 * (gpus - 1) * size * NS_PER_S, gpus * bandwidth
        return (2 * numerator + denominator) // (2 * denominator)
