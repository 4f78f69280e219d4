"""A scheduler alone or augmented with Cassini (Figure 4.9), for simulations and live runs alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self, get_args

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import CASSINI, Vocabulary, split_cassini
from mltcp.core.quantities import parse_number
from placement.cassini.circle import ANGLES, MOST_ANGLES
from placement.cassini.placement_selection import (
    WORTHWHILE,
    Loops,
    Metric,
    PlacementChoice,
    Shifts,
    choose_placement,
)
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

_MOST_CANDIDATES = 10_000


@dataclass(frozen=True)
class CassiniOptions:
    """How Cassini chooses: by default as in this package; ``loops=discard:worthwhile=0`` is the thesis' Algorithm 2.

    Attributes:
        loops, metric, shifts, worthwhile, angles: see `placement_selection.choose_placement`.
        candidates: the number that the scheduler is asked for.
    """

    loops: Loops = "joint"
    metric: Metric = "mean"
    shifts: Shifts = "graph"
    worthwhile: float = WORTHWHILE
    angles: int = ANGLES
    candidates: int = CANDIDATES

    @classmethod
    def parse(cls, text: str) -> Self:
        """The options of a text such as ``loops=discard:worthwhile=0:candidates=50``; those left out are defaults.

        Raises:
            UsageError: an unknown name, or a value that is not allowed.
        """
        names = [each.name for each in fields(cls)]
        found: dict[str, str | float | int] = {}
        for part in filter(None, text.split(":")):
            name, _, value = part.partition("=")
            if name not in names or name in found:
                raise UsageError(f"{CASSINI}@: expected {', '.join(names)}, each once, got {shown(part)}")
            found[name] = _option(name, value)
        return cls(**found)  # type: ignore[arg-type]


def _option(name: str, value: str) -> str | float | int:
    where = f"{CASSINI}@{name}"
    if name in _WORDS:
        if value not in get_args(_WORDS[name]):
            raise UsageError(f"{where}: expected {', '.join(get_args(_WORDS[name]))}, got {shown(value)}")
        return value
    lowest, highest = _BOUNDS[name]
    number = parse_number(value, field=where, lowest=lowest, highest=highest)
    return number if name == "worthwhile" else int(number)


_WORDS = {"loops": Loops, "metric": Metric, "shifts": Shifts}
_BOUNDS = {"worthwhile": (0, 1), "angles": (2, MOST_ANGLES), "candidates": (1, _MOST_CANDIDATES)}

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
        options: of Cassini.
    """

    scheduler: Scheduler
    cassini: bool = False
    most: int = CANDIDATES
    options: CassiniOptions = field(default_factory=CassiniOptions)

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
            loops=self.options.loops,
            angles=self.options.angles,
            worthwhile=self.options.worthwhile,
            metric=self.options.metric,
            shifts=self.options.shifts,
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
    """Look up a policy: one of `SCHEDULERS` or `IN_ROUNDS`, alone or followed by ``+cassini`` (with `CassiniOptions`
    after an @).

    Args:
        name: on the command line.
        seed: of the draws among equally good placements.
        lease_ns: the lease of Themis, instead of its default.

    Raises:
        UsageError: there is no such policy.
    """
    plain = plain_name(name)
    SCHEDULER_NAMES.parse(plain)
    base, augmented = split_cassini(plain)
    options = CassiniOptions.parse(name[len(plain) :].removeprefix("@"))
    if base == "themis":
        themis = Themis(seed=seed) if lease_ns is None else Themis(lease_ns, seed=seed)
        return SchedulingPolicy(themis, augmented, options.candidates, options)
    return SchedulingPolicy(registry.named_scheduler(base, seed), augmented, options.candidates, options)


def plain_name(name: str) -> str:
    """The name of a policy without Cassini's options."""
    base, augmented, _ = name.partition(f"{AUGMENTED}@")
    return base + AUGMENTED if augmented else name
