"""Builds a `World` from what a scheduler sees, and reads the assignment from it after a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.throughput_table import Combination
from placement.policies.schedulers.contention.new_world import new_world
from placement.policies.schedulers.contention.places import insert_slot, update_room
from placement.policies.schedulers.contention.profiles import Kind, TableProfile, kind_of
from placement.policies.schedulers.contention.rule import Rule
from placement.policies.schedulers.contention.tables import kinds_on, tables_of
from placement.policies.schedulers.contention.world import RUNS, WAITS, World
from placement.policies.schedulers.scheduler import Assignment, JobView, free_gpus


def observe(cluster: Cluster, now_ns: int, jobs: Sequence[JobView], rule: Rule, round_ns: int) -> World:
    """The world of a decision.

    Args:
        cluster: a server is a node.
        now_ns: the time.
        jobs: all that run or wait, in the order of their arrival.
        rule: that decides.
        round_ns: the length of a round.

    Raises:
        UsageError: a job fits on no number of nodes, the cluster is too large, or the jobs contradict each other.
    """
    free = free_gpus(cluster, {job.name: job.gpus for job in jobs})
    sizes = tuple(len(server.gpus) for server in cluster.servers)
    of_jobs = [kind_of(job) for job in jobs]
    kinds = kinds_on(sizes, of_jobs)
    tables = tables_of(kinds, sizes, rule.tries_sets)
    restart_ns = max((job.restart_cost_ns for job in jobs), default=0)
    world = new_world(
        tables, sizes, len(jobs), rule, round_ns / NS_PER_S, restart_ns / NS_PER_S, _combination(kinds)
    )
    world.core["now"], world.core["seen"] = now_ns, len(jobs)
    numbers = {kind: number for number, kind in enumerate(kinds)}
    for position, (job, kind) in enumerate(zip(jobs, of_jobs, strict=True)):
        _set_job(world, position, job, numbers[kind], round_ns)
        if job.gpus:
            _set_running(world, position, cluster.by_node(job.gpus))
    waiting = sorted((_queue_key(job, position) for position, job in enumerate(jobs) if not job.gpus))
    world.queue[: len(waiting)] = [key[-1] for key in waiting]
    world.core["waiting"] = len(waiting)
    world.free[:] = 0
    for gpu in free:
        world.free[cluster.gpus[gpu][0]] += 1
    update_room(world)
    return world


def assignment_of(world: World, cluster: Cluster, jobs: Sequence[JobView]) -> Assignment:
    """The GPUs of the jobs that run after a decision: their own where they stay, else the lowest numbers."""
    kept, placed = {}, []
    for slot in world.slots[: int(world.core[0]["running"])]:
        record, job = world.jobs[slot["job"]], jobs[int(slot["job"])]
        if (record["cell_before"], record["nodes_before"]) == (record["cell"], record["nodes"]):
            kept[job.name] = job.gpus
        else:
            placed.append((job, int(slot["nodes"]), int(world.cells[slot["cell"]]["gpus"])))
    by_node: dict[int, list[int]] = {}
    for gpu in free_gpus(cluster, kept):
        by_node.setdefault(cluster.gpus[gpu][0], []).append(gpu)
    assignment = dict(kept)
    for job, nodes, share in placed:
        chosen: list[int] = []
        for node in range(len(cluster.servers)):
            if nodes >> node & 1:
                chosen += by_node[node][:share]
                del by_node[node][:share]
        assignment[job.name] = tuple(sorted(chosen))
    return assignment


def _combination(kinds: Sequence[Kind]) -> Combination:
    profiles = [kind.profile for kind in kinds if isinstance(kind.profile, TableProfile)]
    return profiles[0].model.combination if profiles else "minimum"


def _queue_key(job: JobView, position: int) -> tuple[int, bool, int, int]:
    """The order of the queue: by when they joined it; stopped jobs before new ones, in the order of their starts."""
    return job.since_ns, not job.held_ns, job.started_ns if job.held_ns else 0, position


def _set_job(world: World, position: int, job: JobView, kind: int, round_ns: int) -> None:
    record = world.jobs[position]
    record["kind"], record["arrival"] = kind, job.arrival_ns
    record["state"] = RUNS if job.gpus else WAITS
    record["remaining"] = float(job.iterations_left * job.gpus_wanted)
    record["ratio"], record["hold"] = job.ratio, job.restart_left_ns / NS_PER_S
    record["held"], record["started"] = job.held_ns / NS_PER_S, job.started_ns
    record["starts"] = job.restarts + 1 if job.gpus or job.held_ns else 0


def _set_running(world: World, position: int, nodes: dict[int, int]) -> None:
    """Put a running job on its nodes, in the cell with the nearest number of nodes."""
    record = world.jobs[position]
    kind = world.kinds[record["kind"]]
    cells = range(int(kind["first"]), int(kind["first"] + kind["cells"]))
    cell = min(cells, key=lambda each: abs(math.log2(int(world.cells[each]["nodes"]) / len(nodes))))
    record["cell"], record["nodes"] = cell, sum(1 << node for node in nodes)
    insert_slot(world, position, cell, int(record["nodes"]), 0.0)
