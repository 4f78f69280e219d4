"""Table I of the Ada-SRSF paper: what an all-reduce costs."""

from __future__ import annotations

import math
from enum import Enum

from mltcp.core.errors import UsageError


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
