"""MonkeyTree: jobs are moved until few of them cross each rack's uplinks (Zabreyko et al., arXiv 2602.08296).

A job that lies in several racks sends over the uplinks of each, once for each of its rings. Where these flows are more
than a rack's uplinks carry at full rate, an integer linear program finds the placement of these jobs with the fewest
moves under which no rack has more. Any placement can be brought to two jobs a rack, so no limit is lower. The flows
then have the spines to themselves: an edge coloring of the racks, with a color for each spine (Koenig's theorem).

It moves whole servers if all jobs hold whole servers, and GPUs otherwise. A job that has not started moves for nearly
nothing. Pods are not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import UsageError
from placement.policies.schedulers.scheduler import Assignment, JobView
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.rivals.crux import least_congested
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering

FRAGMENTS = 2
"""Jobs across a rack's uplinks that every placement can be brought to."""

_GAP, _MOST_NODES, _NEW = 0.05, 500, 0.01


class MonkeyTree(Rival):
    """See the module."""

    name = "monkeytree"
    moves = True

    def check(self) -> None:
        """See `Rival.check`."""
        if find_spec("highspy") is None:
            raise UsageError("monkeytree: expected the package highspy, at least 1.8 and below 1.16")

    def moved(self, cluster: NetworkCluster, jobs: Sequence[JobView], assignment: Assignment) -> Assignment:
        """See `Rival.moved`."""
        racks = _Racks.of(cluster, assignment)
        counts = racks.counts(assignment)
        crossing = (counts > 0) & ((counts > 0).sum(axis=1) > 1)[:, None]
        rings = np.array([cluster.rings_of(len(gpus)) for gpus in assignment.values()], np.int64)
        limits = np.maximum(FRAGMENTS * rings.max(initial=1), racks.uplinks)
        if np.all((crossing * rings[:, None]).sum(axis=0) <= limits):
            return assignment
        split = np.flatnonzero(crossing.any(axis=1))
        running = {job.name for job in jobs if job.gpus}
        names = list(assignment)
        costs = np.array([1.0 if names[job] in running else _NEW for job in split])
        capacities = racks.sizes - counts.sum(axis=0) + counts[split].sum(axis=0)
        wanted = defragmented(counts[split], capacities, rings[split], limits, costs)
        if wanted is None:
            return assignment
        return racks.reassigned(assignment, {names[job]: wanted[k] for k, job in enumerate(split)})

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`: between the leaves of a leaf-spine a color a spine, elsewhere as Crux by arrival."""
        ways = {job.name: cluster.ways_of(job.placed) for job in jobs}
        if any(len(way) not in (0, 2, 4) for of_job in ways.values() for each in of_job for way in each):
            load = [0.0] * len(cluster.network.links)
            return Steering({job.name: least_congested(cluster, job, load) for job in jobs})
        links = cluster.network.links
        flows: dict[tuple[str, int, int, int], tuple[str, str]] = {}
        keys: dict[str, list[tuple[str, int, int, int]]] = {}
        for job in jobs:
            messages = job.placed.traffic.messages
            keys[job.name] = [(job.name, each.source, each.target, each.connection) for each in messages]
            for key, (way, *_) in zip(keys[job.name], ways[job.name], strict=True):
                if len(way) == 4:
                    flows[key] = links[way[0]].target, links[way[3]].source
        color = dict(zip(flows, edge_colors(list(flows.values())), strict=True))
        return Steering(
            {
                name: tuple(
                    each[color.get(key, 0) % len(each)] for key, each in zip(of_job, ways[name], strict=True)
                )
                for name, of_job in keys.items()
            }
        )


# -- racks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Racks:
    """The racks of a cluster in blocks of GPUs that are moved together.

    Attributes:
        block: GPUs of a block, which follow each other.
        rack: of each block.
        sizes: blocks of each rack.
        uplinks: of each rack, the flows that its uplinks carry at the rate of a NIC.
    """

    block: int
    rack: NDArray[np.int64]
    sizes: NDArray[np.int64]
    uplinks: NDArray[np.int64]

    @classmethod
    def of(cls, cluster: NetworkCluster, assignment: Assignment) -> _Racks:
        names = list(dict.fromkeys(server.switch for server in cluster.servers))
        gpus = {len(server.gpus) for server in cluster.servers}
        block = next(iter(gpus)) if len(gpus) == 1 else 1
        # Ascending GPUs are whole blocks if each block's first is followed by the rest.
        for held in assignment.values():
            parts = [held[first : first + block] for first in range(0, len(held), block)]
            if any(part[0] % block or part[-1] - part[0] != block - 1 for part in parts):
                block = 1
                break
        by_gpu = [cluster.racks[server] for server, _ in cluster.gpus]
        rack = np.array(by_gpu[::block], np.int64)
        hosts = {server.name for server in cluster.servers}
        carried = dict.fromkeys(names, 0.0)
        for link in cluster.network.links:
            if link.source in carried and link.target not in hosts:
                carried[link.source] += link.rate_bps / cluster.nic_bps
        uplinks = np.array([int(carried[name] + 1e-9) for name in names], np.int64)
        return cls(block, rack, np.bincount(rack, minlength=len(names)), uplinks)

    def counts(self, assignment: Assignment) -> NDArray[np.int64]:
        """The blocks of each job in each rack."""
        rows = [
            np.bincount(self.rack[self._blocks(gpus)], minlength=len(self.sizes))
            for gpus in assignment.values()
        ]
        return np.array(rows, np.int64).reshape(-1, len(self.sizes))

    def reassigned(self, assignment: Assignment, wanted: dict[str, NDArray[np.int64]]) -> Assignment:
        """The assignment in which these jobs have so many blocks in each rack.

        A job gives up the highest of its blocks in a rack, and takes the lowest that is free.
        """
        free = {*range(len(self.rack))}.difference(
            *(self._blocks(gpus).tolist() for gpus in assignment.values())
        )
        held: dict[str, list[int]] = {}
        for job, counts in wanted.items():
            left = counts.copy()
            held[job] = []
            for block in self._blocks(assignment[job]).tolist():
                if left[self.rack[block]] > 0:
                    left[self.rack[block]] -= 1
                    held[job].append(block)
                else:
                    free.add(block)
        by_rack: dict[int, list[int]] = defaultdict(list)
        for block in sorted(free, reverse=True):
            by_rack[int(self.rack[block])].append(block)
        found = dict(assignment)
        for job, blocks in held.items():
            missing = wanted[job] - np.bincount(self.rack[blocks], minlength=len(self.sizes))
            blocks += [by_rack[rack].pop() for rack, count in enumerate(missing) for _ in range(count)]
            found[job] = tuple(
                block * self.block + gpu for block in sorted(blocks) for gpu in range(self.block)
            )
        return found

    def _blocks(self, gpus: Sequence[int]) -> NDArray[np.int64]:
        return np.array(gpus, np.int64)[:: self.block] // self.block


# -- the program -------------------------------------------------------------------------------------------------------


def defragmented(
    counts: NDArray[np.int64],
    capacities: NDArray[np.int64],
    rings: NDArray[np.int64],
    limits: NDArray[np.int64],
    costs: NDArray[np.float64],
) -> NDArray[np.int64] | None:
    """The cheapest placement under which no rack has more crossing rings than its limit.

    Args:
        counts: blocks of each job in each rack now.
        capacities: blocks of each rack that these jobs may have together.
        rings: of each job.
        limits: of each rack.
        costs: of each job, to move a block.

    Returns:
        The blocks of each job in each rack, within a twentieth of the optimum where that is soon found; None if no
        placement was found.
    """
    import highspy  # an optional package

    program = highspy.Highs()
    program.silent()
    for option, value in (("threads", 1), ("mip_rel_gap", _GAP), ("mip_max_nodes", _MOST_NODES)):
        program.setOptionValue(option, value)
    sizes, racks = counts.sum(axis=1), range(counts.shape[1])
    held = [[program.addIntegral(0, int(min(size, capacities[r]))) for r in racks] for size in sizes]
    crossing: list[list[highspy.highs_linear_expression]] = [[] for _ in racks]
    for job, size in enumerate(sizes.tolist()):
        program.addConstr(program.qsum(held[job]) == size)
        for rack in racks:
            present, moved = program.addBinary(), program.addVariable(obj=float(costs[job]))
            most = int(min(size, capacities[rack]))
            program.addConstr(held[job][rack] <= most * present)
            program.addConstr(moved >= held[job][rack] - int(counts[job, rack]))
            crosses = int(rings[job]) * present
            if size <= most:
                whole = program.addBinary()  # whether the whole job lies here
                program.addConstr(held[job][rack] >= size * whole)
                crosses = crosses - int(rings[job]) * whole
            crossing[rack].append(crosses)
    for rack in racks:
        program.addConstr(program.qsum(held[job][rack] for job in range(len(sizes))) <= int(capacities[rack]))
        program.addConstr(program.qsum(crossing[rack]) <= int(limits[rack]))
    program.minimize()
    if not np.isfinite(program.getInfo().mip_gap):
        return None
    return np.array([[round(program.val(each)) for each in row] for row in held], np.int64)


# -- routes ------------------------------------------------------------------------------------------------------------


def edge_colors(edges: Sequence[tuple[str, str]]) -> list[int]:
    """Colors of the edges of a bipartite multigraph, as few as its largest degree: no two that meet have the same.

    An edge gets a color that is free at its source; where it is not free at its target, two colors change places on the
    alternating path that begins there.
    """
    at: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    colors = [0] * len(edges)

    def ends(edge: int) -> tuple[tuple[int, str], tuple[int, str]]:
        return (0, edges[edge][0]), (1, edges[edge][1])

    for number in range(len(edges)):
        source, target = ends(number)
        color, other = _first_free(at[source]), _first_free(at[target])
        path, node, wanted = [], target, color
        while wanted in at[node]:
            edge = at[node][wanted]
            path.append(edge)
            node = next(end for end in ends(edge) if end != node)
            wanted = other if wanted == color else color
        for edge in path:
            for end in ends(edge):
                del at[end][colors[edge]]
            colors[edge] = other if colors[edge] == color else color
        colors[number] = color
        for edge in (*path, number):
            for end in ends(edge):
                at[end][colors[edge]] = edge
    return colors


def _first_free(used: dict[int, int]) -> int:
    return next(color for color in range(len(used) + 1) if color not in used)
