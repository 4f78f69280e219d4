"""The deadline rules as schedulers: the views of the jobs become the arrays of a rule, and its answer an assignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.deadlines.rules import (
    JOB,
    RULES,
    SHORTEST_ON_NODES,
    DeadlineRule,
    DeadlineWorld,
    new_world,
)
from placement.policies.schedulers.free_gpus import FreeGpus, largest_node
from placement.policies.schedulers.scheduler import (
    CANDIDATES,
    Assignment,
    JobView,
    Untimed,
    deadline_of,
    progress,
)

_BITS, _COARSEST = 61, 20
"""Of a time in a rule: 73 years in ns. A longer one makes all times be counted in units of 2, 4, ... 2^20 ns (1 ms).

So a job of thousands of years neither fails nor changes what becomes of the others; 77 million years are the longest.
"""


@dataclass(frozen=True)
class DeadlineScheduler(Untimed):
    """A deadline rule as a scheduler.

    Attributes:
        name: one of `RULES`.

    Raises:
        UsageError: there is no such rule.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise UsageError(f"deadline rule: expected one of {', '.join(RULES)}, got {self.name!r}")

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        free = FreeGpus(cluster, held)
        return (decided(RULES[self.name], cluster, now_ns, jobs, held, free) if free.total else held,)


def start_on_whole_nodes(
    cluster: Cluster, now_ns: int, jobs: Sequence[JobView], assignment: Assignment
) -> Assignment:
    """Add the waiting jobs that find a free node to an assignment, the shortest on its fewest GPUs first."""
    free = FreeGpus(cluster, assignment)
    return decided(SHORTEST_ON_NODES, cluster, now_ns, jobs, assignment, free) if free.total else assignment


def decided(
    rule: DeadlineRule,
    cluster: Cluster,
    now_ns: int,
    jobs: Sequence[JobView],
    held: Assignment,
    free: FreeGpus,
) -> Assignment:
    """The assignment of a rule.

    Args:
        rule: decides.
        cluster: its servers are nodes.
        now_ns: the time.
        jobs: in the order of their arrival: all that wait, and all that run if the rule migrates.
        held: the GPUs of running jobs.
        free: the others.

    Raises:
        UsageError: a job that waits has no deadline, and the rule needs one.
    """
    from placement.policies.schedulers.deadlines.decide import decide  # compiled: slow to import

    world = observe(rule, cluster, now_ns, jobs, free)
    decide(world, 0)
    core = world.core[0]
    moved = {jobs[number].name for number in world.changed[: core.moved]}
    assignment = {job: gpus for job, gpus in held.items() if job not in moved}
    if moved:
        free = FreeGpus(cluster, assignment)
    for number in world.changed[: core.changed]:
        assignment[jobs[number].name] = free.take_of(world.held[number].tolist())
    return assignment


def observe(
    rule: DeadlineRule, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], free: FreeGpus
) -> DeadlineWorld:
    """The cluster and the jobs as a rule sees them; times are from `now_ns` on.

    Raises:
        UsageError: a job that waits has no deadline, and the rule needs one.
    """
    gpus, per_node = len(cluster.gpus), largest_node(cluster)
    waiting = [(number, job) for number, job in enumerate(jobs) if not job.gpus]
    runs = [_runs(_timed(job), gpus, per_node) for _, job in waiting]
    rows = {each: row for row, each in enumerate(dict.fromkeys(runs))}
    times = [[job.arrival_ns - now_ns, job.restart_ns] for _, job in waiting]
    if rule.needs_deadlines:
        times = [[*those, deadline_of(job) - now_ns] for those, (_, job) in zip(times, waiting, strict=True)]
    longest = max((abs(each) for those in times for each in those), default=0)
    longest = max((longest, *(each.longest_ns for each in rows)))
    coarser = min(max(0, longest.bit_length() - _BITS), _COARSEST)
    records = np.zeros(len(jobs), JOB)
    for (number, job), those, each in zip(waiting, times, runs, strict=True):
        record = records[number]
        record.row, record.fewest, record.most = rows[each], job.gpus_min, min(job.gpus_max, gpus)
        for field, time in zip(("arrival", "restart", "deadline"), those, strict=False):
            record[field] = _in_units(time, coarser)
    world = new_world(
        rule, records, *_tables(rows, coarser), [len(server.gpus) for server in cluster.servers]
    )
    world.free[:] = free.counts
    queue, active = [number for number, _ in waiting], [number for number, job in enumerate(jobs) if job.gpus]
    world.queue[: len(queue)], world.active[: len(active)] = queue, active
    world.core["waiting"], world.core["running"] = len(queue), len(active)
    for number in active:
        nodes = cluster.by_node(jobs[number].gpus)
        world.held[number, list(nodes)] = list(nodes.values())
        records[number].gpus, records[number].cross = len(jobs[number].gpus), len(nodes) > 1
    return world


@dataclass(frozen=True, eq=False)
class _Runs:
    """The times of a job on its numbers of GPUs, from the fewest on.

    Attributes:
        fewest: GPUs that it can run on.
        run_ns: T_run of what is left, per kind.
        gains: whether (11) of DRS lets a number of GPUs pass, per kind.
    """

    fewest: int
    run_ns: tuple[tuple[int, ...], tuple[int, ...]]
    gains: tuple[tuple[bool, ...], tuple[bool, ...]]

    @property
    def longest_ns(self) -> int:
        """The longest run."""
        return max(max(of_kind, default=0) for of_kind in self.run_ns)


@lru_cache(maxsize=1024)
def _runs(job: JobView, gpus: int, per_node: int) -> _Runs:
    """The times of a job in a cluster of so many GPUs: on one node as far as one has room, and across nodes."""
    fewest, most = job.gpus_min, min(job.gpus_max, gpus)
    numbers = range(fewest, max(min(most, per_node), fewest) + 1), range(fewest, most + 1)
    kinds = [[(count, kind == 0 or count == 1) for count in numbers[kind]] for kind in (0, 1)]
    single, across = (tuple(job.run_ns(*each) for each in kind) for kind in kinds)
    gains_single, gains_across = (tuple(_gains(job, *each) for each in kind) for kind in kinds)
    return _Runs(fewest, (single, across), (gains_single, gains_across))


def _timed(job: JobView) -> JobView:
    """What the run times of a job depend on."""
    left = job.iterations_left
    bounds = job.gpus_wanted, job.gpus_min, job.gpus_max
    return JobView("", 0, *bounds, left, left, job.times, noise_scale=job.noise_scale)


def _gains(job: JobView, gpus: int, one_node: bool) -> bool:
    """Whether the job is faster than on the fewest GPUs that it can run on: (10), and so (11)."""
    fewest = job.gpus_min
    time, fewest_time = job.times.iteration_ns(gpus, one_node), job.times.iteration_ns(fewest, True)
    return time * progress(job, fewest) < fewest_time * progress(job, gpus)


def _tables(rows: Iterable[_Runs], coarser: int) -> tuple[np.ndarray, np.ndarray]:
    """T_run and whether (11) holds, per row, kind and number of GPUs."""
    listed = list(rows)
    width = max((each.fewest + len(of_kind) for each in listed for of_kind in each.run_ns), default=1)
    run, gains = np.zeros((len(listed), 2, width), np.int64), np.zeros((len(listed), 2, width), np.bool_)
    for row, each in enumerate(listed):
        for kind, of_kind in enumerate(each.run_ns):
            columns = slice(each.fewest, each.fewest + len(of_kind))
            run[row, kind, columns] = [_in_units(run_ns, coarser) for run_ns in of_kind]
            gains[row, kind, columns] = each.gains[kind]
    return run, gains


def _in_units(time_ns: int, coarser: int) -> int:
    return max(-1 << _BITS, min(time_ns >> coarser, 1 << _BITS))
