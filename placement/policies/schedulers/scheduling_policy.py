"""A scheduler alone or augmented with Cassini (Figure 4.9), for simulations and live runs alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mltcp.core.demand import Demand
from mltcp.core.policy_names import CASSINI, Vocabulary, split_cassini
from placement.cassini.placement_selection import Loops, PlacementChoice, choose_placement
from placement.model.cluster import Cluster
from placement.policies.schedulers import registry
from placement.policies.schedulers.contention import rule
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler
from placement.policies.schedulers.themis import Themis

SCHEDULERS = tuple(registry.SCHEDULERS)
IN_ROUNDS = (*rule.ORDERED_RULES, *rule.RULES)
AUGMENTED = f"+{CASSINI}"
SCHEDULER_NAMES = Vocabulary(
    "scheduler",
    tuple(name + suffix for name in (*SCHEDULERS, *IN_ROUNDS) for suffix in ("", AUGMENTED)),
    shown=(*(name + suffix for name in SCHEDULERS for suffix in ("", AUGMENTED)), *rule.SHOWN),
)

DemandOf = Callable[[str, int], Demand | None]
"""Returns the demand of a job with so many workers; None if it sends nothing, or was not profiled."""


@dataclass(frozen=True)
class Decision:
    """The decision of a policy at one time.

    Attributes:
        assignment: the GPUs of all jobs that run from now on.
        candidates: the scheduler's candidates; without Cassini the first is taken.
        choice: Cassini's choice among them; None without Cassini.
        took_ns: the time that the decision took.
    """

    assignment: Assignment
    candidates: tuple[Assignment, ...]
    choice: PlacementChoice | None
    took_ns: int

    @property
    def shifts_ns(self) -> Mapping[str, int]:
        """The time shift of each job that is tied to another one; none without Cassini."""
        return self.choice.shifts_ns if self.choice else {}

    @property
    def tied(self) -> tuple[tuple[str, ...], ...]:
        """The groups of jobs whose drift off their time shifts is to be corrected; none without Cassini."""
        return self.choice.tied if self.choice else ()


@dataclass(frozen=True)
class SchedulingPolicy:
    """A scheduler, and whether Cassini chooses among its candidates.

    Attributes:
        scheduler: yields the candidates.
        cassini: whether it is augmented with Cassini.
        most: the number of candidates that it is asked for.
        loops: what becomes of candidates whose affinity graph has loops; see `placement_selection.choose_placement`.
    """

    scheduler: Scheduler
    cassini: bool = False
    most: int = CANDIDATES
    loops: Loops = field(default="joint")

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.scheduler.name + (AUGMENTED if self.cassini else "")

    def decide(
        self, cluster: Cluster, nic_bps: int, now_ns: int, jobs: Sequence[JobView], demand_of: DemandOf
    ) -> Decision:
        """Assign GPUs to the jobs.

        Args:
            cluster: its links have speeds relative to `nic_bps`.
            nic_bps: the rate of a NIC of speed 1.
            now_ns: the time.
            jobs: all that run or wait.
            demand_of: only called with Cassini.

        Raises:
            UsageError: the views of the jobs contradict each other.
        """
        began = time.perf_counter_ns()
        candidates = self.scheduler.candidates(cluster, now_ns, jobs, self.most)
        if not self.cassini:
            return Decision(candidates[0], candidates, None, time.perf_counter_ns() - began)
        workers = {job: len(gpus) for job, gpus in candidates[0].items()}
        demands = {
            job: demand for job, count in workers.items() if (demand := demand_of(job, count)) is not None
        }
        capacities_bps = {link.name: round(link.speed * nic_bps) for link in cluster.links}
        choice = choose_placement(
            [traffic(cluster, candidate, demands) for candidate in candidates],
            demands,
            capacities_bps,
            loops=self.loops,
        )
        took_ns = time.perf_counter_ns() - began
        return Decision(candidates[choice.candidate], candidates, choice, took_ns)


def traffic(
    cluster: Cluster, assignment: Assignment, demands: Mapping[str, Demand]
) -> dict[str, tuple[str, ...]]:
    """The jobs that use each link, of those that have a demand."""
    users: dict[str, tuple[str, ...]] = {}
    for job in sorted(assignment):
        if job in demands:
            for link in cluster.links_of(job, assignment[job]):
                name = cluster.links[link].name
                users[name] = (*users.get(name, ()), job)
    return users


def scheduling_policy(name: str, *, seed: int = 0, lease_ns: int | None = None) -> SchedulingPolicy:
    """Look up a policy: one of `SCHEDULERS` or `IN_ROUNDS`, alone or followed by ``+cassini``.

    Args:
        name: on the command line.
        seed: of the draws among equally good placements.
        lease_ns: the lease of Themis, instead of its default.

    Raises:
        UsageError: there is no such policy.
    """
    SCHEDULER_NAMES.parse(name)
    base, augmented = split_cassini(name)
    if base == "themis":
        themis = Themis(seed=seed) if lease_ns is None else Themis(lease_ns, seed=seed)
        return SchedulingPolicy(themis, augmented)
    return SchedulingPolicy(registry.named_scheduler(base, seed), augmented)
