"""The migration of DRS (3.3): running jobs are packed onto fewer nodes when most nodes are at most half used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.scheduler import Assignment


def migrated(cluster: Cluster, held: Assignment) -> Assignment:
    """The assignment of the running jobs after migration; `held` itself if none is due or it changes nothing.

    The jobs, in the order of their arrival, are placed on an empty cluster: those on one node and then the others, each
    group by descending N, as their own kind. N does not change. A job that is to have as many GPUs of each node as it
    has keeps those that it has, if no job that moves is to have them.
    """
    if 2 * _sparse_nodes(cluster, held) <= len(cluster.servers):
        return held
    nodes = {job: by_node(cluster, gpus) for job, gpus in held.items()}
    planned = _plan(cluster, nodes)
    if planned is None or planned == nodes:
        return held
    return _placed(cluster, held, nodes, planned)


def by_node(cluster: Cluster, gpus: Sequence[int]) -> dict[int, int]:
    """The number of GPUs on each node that has any of them."""
    counts: dict[int, int] = {}
    for gpu in gpus:
        node = cluster.gpus[gpu][0]
        counts[node] = counts.get(node, 0) + 1
    return counts


def _sparse_nodes(cluster: Cluster, held: Assignment) -> int:
    """k: the number of nodes that are used, but at most half."""
    free = FreeGpus(cluster, held).counts
    sizes = [len(server.gpus) for server in cluster.servers]
    return sum(0 < size - left <= size / 2 for size, left in zip(sizes, free, strict=True))


def _plan(cluster: Cluster, nodes: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]] | None:
    """The GPUs of each job by node; None if a job finds no room."""
    empty = FreeGpus(cluster, {})
    planned: dict[str, dict[int, int]] = {}
    for job in sorted(nodes, key=lambda name: (len(nodes[name]) > 1, -sum(nodes[name].values()))):
        gpus = empty.take(sum(nodes[job].values()), cross_node=len(nodes[job]) > 1)
        if gpus is None:
            return None
        planned[job] = by_node(cluster, gpus)
    return planned


def _placed(
    cluster: Cluster,
    held: Assignment,
    nodes: Mapping[str, Mapping[int, int]],
    planned: Mapping[str, Mapping[int, int]],
) -> Assignment:
    """GPUs for a plan: jobs that stay keep theirs."""
    staying = {job: gpus for job, gpus in held.items() if planned[job] == nodes[job]}
    free = FreeGpus(cluster, staying)
    placed = dict(staying)
    for job in held:
        if job not in staying:
            gpus = [gpu for node, count in planned[job].items() for gpu in free.take_of(node, count)]
            placed[job] = tuple(sorted(gpus))
    return placed
