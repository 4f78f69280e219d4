"""The GPU allocation of DRS (3.2): the fullest nodes first, so that few GPUs are left over in many places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import gpu_owners


class FreeGpus:
    """The free GPUs of each node; a server of the cluster is a node.

    Args:
        cluster: its nodes.
        held: the GPUs that jobs hold.

    Raises:
        UsageError: a GPU does not exist, or two jobs hold it.
    """

    def __init__(self, cluster: Cluster, held: Mapping[str, Sequence[int]]) -> None:
        owners = gpu_owners(cluster, held)
        self._by_node: list[list[int]] = [[] for _ in cluster.servers]
        self._sizes = [len(server.gpus) for server in cluster.servers]
        for gpu, (node, _) in enumerate(cluster.gpus):
            if gpu not in owners:
                self._by_node[node].append(gpu)

    @property
    def counts(self) -> tuple[int, ...]:
        """c_free: the free GPUs of each node."""
        return tuple(len(gpus) for gpus in self._by_node)

    @property
    def total(self) -> int:
        """The free GPUs of all nodes."""
        return sum(self.counts)

    @property
    def all_free(self) -> bool:
        """Whether no GPU is held."""
        return self.total == sum(self._sizes)

    @property
    def largest_node(self) -> int:
        """The GPUs of the largest node, free or not."""
        return max(self._sizes)

    def free_nodes(self) -> list[int]:
        """The numbers of GPUs of the nodes all of whose GPUs are free, in the order of the nodes."""
        return [count for node, count in enumerate(self.counts) if count == self._sizes[node]]

    def take(self, gpus: int, cross_node: bool) -> tuple[int, ...] | None:
        """Take GPUs for a job of one kind, of nodes by ascending free GPUs and then by number.

        On one node it is the first that has room; across nodes all that each has, in turn.

        Returns:
            Their numbers, ascending; None, and nothing is taken, if there is no room.
        """
        counts = self.counts
        order = sorted((node for node in range(len(counts)) if counts[node]), key=lambda node: counts[node])
        if not cross_node:
            order = [node for node in order if counts[node] >= gpus][:1]
        if sum(counts[node] for node in order) < gpus:
            return None
        taken: list[int] = []
        for node in order:
            taken += self.take_of(node, min(counts[node], gpus - len(taken)))
        return tuple(sorted(taken))

    def take_of(self, node: int, gpus: int) -> tuple[int, ...]:
        """Take GPUs of one node that has as many free ones, the lowest numbers first."""
        taken, self._by_node[node] = self._by_node[node][:gpus], self._by_node[node][gpus:]
        return tuple(taken)

    def take_room(self, gpus: int) -> tuple[int, ...] | None:
        """Take GPUs on one node if one has room, and else across nodes; None if there are too few."""
        return self.take(gpus, cross_node=False) or self.take(gpus, cross_node=True)
