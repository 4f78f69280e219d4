"""The rules in rounds as schedulers, for every executor and for a live cluster: one decision, and its views of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.compiled import compiled_with_arrays
from placement.model.throughput_table import Combination
from placement.policies.schedulers.contention.look_ahead import decide_ahead
from placement.policies.schedulers.contention.marginal import greedy, reopt
from placement.policies.schedulers.contention.ordered import decide_at_random, decide_in_order
from placement.policies.schedulers.contention.places import insert_slot, update_room
from placement.policies.schedulers.contention.rounds import (
    begin_decision,
    end_decision,
    exempt_rounds,
)
from placement.policies.schedulers.contention.rule import (
    GREEDY,
    GREEDY_LOOK,
    NO_STOPS,
    ORDERED,
    RANDOM,
    REOPT,
    REOPT_LOOK,
    STOPS_BY_RATIO,
    RoundsRule,
    find_rule,
)
from placement.policies.schedulers.contention.tables import (
    JobKind,
    TableProfile,
    kind_of,
    kinds_on,
    tables_of,
)
from placement.policies.schedulers.contention.world import RUNS, WAITS, RoundsWorld, new_world, trial_of
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, free_gpus

# -- one decision, of whatever rule ------------------------------------------------------------------------------------


@compiled_with_arrays
def decide(world: RoundsWorld, trial: RoundsWorld) -> None:
    """Start, stop and move jobs by the rule of the world; `trial` is scratch for look-ahead.

    Raises:
        ValueError: there is no such family of rules.
    """
    family = world.core[0].family
    begin_decision(world)
    if family == ORDERED:
        decide_in_order(world)
    elif family == RANDOM:
        decide_at_random(world)
    elif family == GREEDY:
        # Without news no gain has grown: candidates are the same, and the weights of running jobs only rise.
        if world.core[0].news:
            greedy(world)
    elif family == REOPT:
        reopt(world)
    elif family in (GREEDY_LOOK, REOPT_LOOK):
        decide_ahead(world, trial)
    else:
        raise ValueError(
            "family of a rule in rounds: expected one of placement.policies.schedulers.contention.world"
        )
    end_decision(world)


# -- from views of jobs to a world, and from it to an assignment -------------------------------------------------------


def observe(
    cluster: Cluster, now_ns: int, jobs: Sequence[JobView], rule: RoundsRule, round_ns: int
) -> RoundsWorld:
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


def assignment_of(world: RoundsWorld, cluster: Cluster, jobs: Sequence[JobView]) -> Assignment:
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


def _combination(kinds: Sequence[JobKind]) -> Combination:
    profiles = [kind.profile for kind in kinds if isinstance(kind.profile, TableProfile)]
    return profiles[0].model.combination if profiles else "minimum"


def _queue_key(job: JobView, position: int) -> tuple[int, bool, int, int]:
    """The order of the queue: by when they joined it; stopped jobs before new ones, in the order of their starts."""
    return job.since_ns, not job.held_ns, job.started_ns if job.held_ns else 0, position


def _set_job(world: RoundsWorld, position: int, job: JobView, kind: int, round_ns: int) -> None:
    record = world.jobs[position]
    record["kind"], record["arrival"] = kind, job.arrival_ns
    record["state"] = RUNS if job.gpus else WAITS
    record["remaining"] = float(job.iterations_left * job.gpus_wanted)
    record["ratio"], record["hold"] = job.ratio, job.restart_left_ns / NS_PER_S
    record["held"], record["started"] = job.held_ns / NS_PER_S, job.started_ns
    record["starts"] = job.restarts + 1 if job.gpus or job.held_ns else 0


def _set_running(world: RoundsWorld, position: int, nodes: dict[int, int]) -> None:
    """Put a running job on its nodes, in the cell with the nearest number of nodes."""
    record = world.jobs[position]
    kind = world.kinds[record["kind"]]
    cells = range(int(kind["first"]), int(kind["first"] + kind["cells"]))
    cell = min(cells, key=lambda each: abs(math.log2(int(world.cells[each]["nodes"]) / len(nodes))))
    record["cell"], record["nodes"] = cell, sum(1 << node for node in nodes)
    insert_slot(world, position, cell, int(record["nodes"]), 0.0)


# -- schedulers --------------------------------------------------------------------------------------------------------


ROUND_NS = 300 * 10**9
"""The paper's round of 300 s."""


@dataclass(frozen=True)
class RoundsScheduler:
    """A rule that decides at the beginning of every round; a job gets as many GPUs as it asks for.

    Each decision is a function of what the scheduler is shown, and of nothing else.

    Attributes:
        name: on the command line.
        rule: what it stands for.
        round_ns: the length of a round.
    """

    name: str
    rule: RoundsRule
    round_ns: int = ROUND_NS

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The beginning of the next round; None for rules that change nothing unless a job has arrived or ended."""
        if self.rule.stops == NO_STOPS and self.rule.family in (ORDERED, GREEDY):
            return None
        return (now_ns // self.round_ns + 1) * self.round_ns

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """The running jobs that contention has slowed down too much, in the order in which they were started."""
        if self.rule.stops != STOPS_BY_RATIO:
            return ()
        return contended(now_ns, jobs, self.round_ns, self.rule.stop_ratio)

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`: one.

        Raises:
            UsageError: a job fits on no number of nodes, the cluster is too large for the rule, or the scheduler was
                made for other jobs or another cluster.
        """
        if not jobs:
            return ({},)
        self._check(cluster, jobs)
        world = observe(cluster, now_ns, jobs, self.rule, self.round_ns)
        self._decide(world)
        return (assignment_of(world, cluster, jobs),)

    def _check(self, cluster: Cluster, jobs: Sequence[JobView]) -> None:
        """Refuse a cluster and jobs for which the scheduler was not made; a rule decides for any."""

    def _decide(self, world: RoundsWorld) -> None:
        decide(world, trial_of(world))


def contended(now_ns: int, jobs: Sequence[JobView], round_ns: int, most: float) -> tuple[str, ...]:
    """The running jobs that the stop rule stops, with ratios up to `most`, in the order in which they were started."""
    round_s = round_ns / 1e9
    found = [
        (job.started_ns, position, job.name)
        for position, job in enumerate(jobs)
        if job.gpus
        and job.ratio <= most
        and now_ns - job.started_ns > exempt_rounds(job.restart_ns / 1e9, round_s) * round_ns
    ]
    return tuple(name for _, _, name in sorted(found))


def rounds_scheduler(name: str, seed: int = 0) -> RoundsScheduler | None:
    """The scheduler of this name; None if no rule in rounds has it."""
    rule = find_rule(name, seed)
    return None if rule is None else RoundsScheduler(name, rule)
