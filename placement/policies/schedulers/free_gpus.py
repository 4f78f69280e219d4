"""The free GPUs of each node, and the ends of running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView, gpu_owners


class FreeGpus:
    """The free GPUs of each node; a server of the cluster is a node.

    Attributes:
        sizes: the GPUs of each node, free or not.

    Args:
        cluster: its nodes.
        held: the GPUs that jobs hold.

    Raises:
        UsageError: a GPU does not exist, or two jobs hold it.
    """

    def __init__(self, cluster: Cluster, held: Mapping[str, Sequence[int]]) -> None:
        from placement.policies.schedulers.deadlines.decide import take  # compiled: slow to import

        owners = gpu_owners(cluster, held)
        self.sizes = tuple(len(server.gpus) for server in cluster.servers)
        self._by_node: list[list[int]] = [[] for _ in cluster.servers]
        self._racks = cluster.racks
        for gpu, (node, _) in enumerate(cluster.gpus):
            if gpu not in owners:
                self._by_node[node].append(gpu)
        self._take = take
        self._left = np.array(self.counts, np.int64)
        self._taken = np.zeros_like(self._left)

    @property
    def counts(self) -> tuple[int, ...]:
        """c_free: the free GPUs of each node."""
        return tuple(len(gpus) for gpus in self._by_node)

    @property
    def total(self) -> int:
        """The free GPUs of all nodes."""
        return sum(self.counts)

    def take(self, gpus: int, cross_node: bool) -> tuple[int, ...] | None:
        """Take GPUs for a job of one kind, of nodes by the allocation of DRS (see `deadlines.decide.take`).

        Returns:
            Their numbers, ascending; None, and nothing is taken, if there is no room.
        """
        if not self._take(self._left, gpus, int(cross_node), self._taken):
            return None
        return self._lowest(self._taken.tolist())

    def take_of(self, counts: Iterable[int]) -> tuple[int, ...]:
        """Take so many GPUs of each node, which it has, the lowest numbers first; returns their numbers, ascending."""
        found = self._lowest(counts)
        self._left = np.array(self.counts, np.int64)
        return found

    def take_room(self, gpus: int) -> tuple[int, ...] | None:
        """Take GPUs on one node if one has room, else in one rack if one has room, else across racks; None: too few."""
        return (
            self.take(gpus, cross_node=False) or self._take_in_rack(gpus) or self.take(gpus, cross_node=True)
        )

    def _take_in_rack(self, gpus: int) -> tuple[int, ...] | None:
        """Of the tightest rack with room."""
        racks = np.array(self._racks)
        of_racks = np.bincount(racks, self._left).astype(np.int64)
        chosen = np.zeros_like(of_racks)
        if not self._take(of_racks, gpus, 0, chosen):
            return None
        self._take(np.where(chosen[racks] > 0, self._left, 0), gpus, 1, self._taken)
        self._left -= self._taken
        return self._lowest(self._taken.tolist())

    def _lowest(self, counts: Iterable[int]) -> tuple[int, ...]:
        taken: list[int] = []
        for node, count in enumerate(counts):
            taken += self._by_node[node][:count]
            del self._by_node[node][:count]
        return tuple(sorted(taken))


def largest_node(cluster: Cluster) -> int:
    """The GPUs of the largest node."""
    return max(len(server.gpus) for server in cluster.servers)


def running_end_ns(cluster: Cluster, job: JobView, now_ns: int) -> int:
    """T_end of a job that runs."""
    one_node = len(cluster.by_node(job.gpus)) == 1
    return now_ns + job.restart_left_ns + job.run_ns(len(job.gpus), one_node)
