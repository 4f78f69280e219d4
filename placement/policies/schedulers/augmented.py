"""A scheduler's decision, alone or augmented with Cassini (Figure 4.9): one object for simulator and live service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mltcp.core.demand import Demand
from mltcp.core.policy_names import CASSINI, Vocabulary, split_cassini
from placement.cassini.placement_selection import Choice, Loops, choose
from placement.model.cluster import Cluster
from placement.policies.schedulers.pollux import Pollux
from placement.policies.schedulers.random_scheduler import Random
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler
from placement.policies.schedulers.themis import Themis

SCHEDULERS = ("themis", "pollux", "random")
AUGMENTED = f"+{CASSINI}"
SCHEDULER_NAMES = Vocabulary(
    "scheduler", tuple(name + suffix for name in SCHEDULERS for suffix in ("", AUGMENTED))
)

DemandOf = Callable[[str, int], Demand | None]
"""The demand of a job with so many workers; None if it sends nothing, or was not profiled."""


@dataclass(frozen=True)
class Decision:
    """What a scheduler decided.

    Attributes:
        assignment: the GPUs of all jobs that run from now on.
        candidates: all that it had to choose from; without Cassini the first is taken.
        choice: what Cassini says of them; None without it.
        took_ns: to decide.
    """

    assignment: Assignment
    candidates: tuple[Assignment, ...]
    choice: Choice | None
    took_ns: int

    @property
    def shifts_ns(self) -> Mapping[str, int]:
        """The time shift of each job that is tied to another one; none without Cassini."""
        return self.choice.shifts_ns if self.choice else {}

    @property
    def turns(self) -> tuple[tuple[str, ...], ...]:
        """The jobs that are to be kept where their time shifts have them, against drift; none without Cassini."""
        return self.choice.turns if self.choice else ()


@dataclass(frozen=True)
class Policy:
    """A scheduler, and whether Cassini chooses among its candidates.

    Attributes:
        scheduler: that yields the candidates.
        cassini: whether it is augmented.
        most: how many candidates it is asked for.
        loops: what becomes of those with loops; see `cassini.module.choose`.
    """

    scheduler: Scheduler
    cassini: bool = False
    most: int = CANDIDATES
    loops: Loops = field(default="joint")

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.scheduler.name + (AUGMENTED if self.cassini else "")

    def decide(
        self, cluster: Cluster, nic_bps: int, now_ns: int, jobs: Sequence[JobView], demand_of: DemandOf
    ) -> Decision:
        """Assign GPUs to the jobs.

        Args:
            cluster: whose links have speeds relative to `nic_bps`.
            nic_bps: of a NIC of speed 1.
            now_ns: the time.
            jobs: all that run or wait.
            demand_of: only asked with Cassini.

        Raises:
            UsageError: what the jobs say of themselves cannot be.
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
        choice = choose(
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
    """Which of the jobs that have a demand use which link."""
    found: dict[str, tuple[str, ...]] = {}
    for job in sorted(assignment):
        if job in demands:
            for link in links_of(cluster, assignment[job]):
                name = cluster.links[link].name
                found[name] = (*found.get(name, ()), job)
    return found


def links_of(cluster: Cluster, gpus: Sequence[int]) -> tuple[int, ...]:
    """The numbers of the links that a job on these GPUs uses."""
    return cluster.links_between(cluster.gpus[gpu][0] for gpu in gpus)


def policy(name: str, *, seed: int = 0, lease_ns: int | None = None) -> Policy:
    """The policy of this name: one of `SCHEDULERS`, alone or followed by ``+cassini``.

    Args:
        name: as it is asked for.
        seed: of the draws among equally good placements.
        lease_ns: of Themis, instead of its default.

    Raises:
        UsageError: there is none.
    """
    SCHEDULER_NAMES.parse(name)
    base, augmented = split_cassini(name)
    if base == "themis":
        themis = Themis(seed=seed) if lease_ns is None else Themis(lease_ns, seed=seed)
        return Policy(themis, augmented)
    if base == "pollux":
        return Policy(Pollux(seed=seed), augmented)
    return Policy(Random(seed), augmented)
