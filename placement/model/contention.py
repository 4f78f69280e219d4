"""The time of an all-reduce, alone (Table I, Eq. 2) and with others on the same link (Eq. 5 of the Ada-SRSF paper).

The paper is "Communication Contention Aware Scheduling of Multiple Deep Learning Training Jobs" (Wang, Shi, Wang, Chu);
the equations and tables of this room are its, unless another is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class Contention:
    """Eq. 5: M bytes while k transfers share the link take a + k*b*M + (k-1)*eta*M.

    Attributes:
        latency_ns: a, whatever the size and whoever else is sending.
        ns_per_byte: b, of a transfer that is alone.
        penalty_ns_per_byte: eta, what every further transfer costs each beyond its fair share.
    """

    latency_ns: Fraction
    ns_per_byte: Fraction
    penalty_ns_per_byte: Fraction

    def __post_init__(self) -> None:
        if self.ns_per_byte <= 0:
            raise UsageError(f"contention: b: expected more than 0 ns/byte, got {float(self.ns_per_byte):g}")
        if self.latency_ns < 0 or self.penalty_ns_per_byte < 0:
            raise UsageError(
                f"contention: a and eta: expected 0 or more, got {float(self.latency_ns):g} ns and "
                f"{float(self.penalty_ns_per_byte):g} ns/byte"
            )

    def pace_ns_per_byte(self, transfers: int) -> Fraction:
        """The time of a byte while `transfers` (1 or more) share the link: k*b + (k-1)*eta."""
        return transfers * self.ns_per_byte + (transfers - 1) * self.penalty_ns_per_byte

    def duration_ns(self, size_bytes: int, transfers: int = 1) -> Fraction:
        """Eq. 5: the time of `size_bytes` while `transfers` share the link throughout."""
        return self.latency_ns + size_bytes * self.pace_ns_per_byte(transfers)

    @property
    def acceptance(self) -> Fraction:
        """b / (2(b + eta)): a transfer this much smaller than the rest of a running one starts beside it (Eq. 13)."""
        return self.ns_per_byte / (2 * (self.ns_per_byte + self.penalty_ns_per_byte))


PUBLISHED = Contention(Fraction(0), Fraction("0.856"), Fraction("0.235"))
"""The constants of the published simulator, of 10 Gbit/s Ethernet (ms/MB there; the paper leaves eta out)."""


class AllReduce(Enum):
    """Table I: the algorithms whose costs the paper lists."""

    BINARY_TREE = "binary-tree"
    RECURSIVE_DOUBLING = "recursive-doubling"
    RECURSIVE_HALVING_AND_DOUBLING = "recursive-halving-and-doubling"
    RING = "ring"

    def cost(self, nodes: int, alpha: float, beta: float, gamma: float) -> tuple[float, float]:
        """Table I: a (in the unit of `alpha`) and b (that of `beta` and `gamma`) among `nodes`.

        Args:
            nodes: N, a power of two but for the ring.
            alpha: the latency of a message.
            beta: the time to send a byte.
            gamma: the time to add a byte to another.

        Raises:
            UsageError: fewer than two nodes, or not a power of two where the algorithm needs one.
        """
        if nodes < 2 or (self is not AllReduce.RING and nodes & (nodes - 1)):
            raise UsageError(f"{self.value}: expected a power of two of nodes, 2 or more, got {nodes}")
        log = math.log2(nodes)
        match self:
            case AllReduce.BINARY_TREE:
                return 2 * alpha * log, (2 * beta + gamma) * log
            case AllReduce.RECURSIVE_DOUBLING:
                return alpha * log, (beta + gamma) * log
            case AllReduce.RECURSIVE_HALVING_AND_DOUBLING:
                return 2 * alpha * log, 2 * beta - (2 * beta + gamma) / nodes + gamma
            case AllReduce.RING:
                share = (nodes - 1) / nodes
                return 2 * (nodes - 1) * alpha, 2 * share * beta + share * gamma
