"""Sets of jobs that are described by their demand on a link, as contests on the lab's link."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bench.compare.contest import Contest
from bench.workloads.phases import ComputeChange, PhasedWork, on_link, time_scale
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.cassini.compatibility import score_link


@dataclass(frozen=True)
class DemandingJob:
    """A job by its name and its demand on a link of the set's capacity; equal jobs have one model."""

    name: str
    model: str
    demand: Demand


@dataclass(frozen=True)
class Snapshot:
    """Jobs that share one link, described on a link of `capacity_bps`."""

    name: str
    capacity_bps: int
    jobs: tuple[DemandingJob, ...]


def contest_of(
    snapshot: Snapshot, template: Contest, *, random_starts: bool = False, seed: int = 0
) -> Contest:
    """The contest of a snapshot's jobs on the link of the template.

    Times are multiplied by one factor for all jobs, bandwidths by the ratio of the link's rate to the capacity.

    Args:
        snapshot: the jobs.
        template: everything but the jobs.
        random_starts: whether jobs start at random moments of an iteration, the same for all approaches of a repeat.
        seed: of these moments.

    Raises:
        UsageError: the template changes a job that is not in the set.
    """
    names = [job.name for job in snapshot.jobs]
    if template.change is not None and template.change.job not in names:
        raise UsageError(f"--change: no job {template.change.job!r} in the set; there are {', '.join(names)}")
    scale = time_scale([job.demand.iteration_ns / 1e9 for job in snapshot.jobs])
    demands = {job.name: _scaled(job.demand, snapshot, template, scale) for job in snapshot.jobs}
    starts_s: tuple[tuple[float, ...], ...] = ()
    if random_starts:
        starts_s = tuple(
            _random_starts_s(demands, f"{seed}/{snapshot.name}/{repeat}") for repeat in range(template.repeat)
        )
    return replace(
        template,
        name=snapshot.name,
        jobs=tuple((job.name, _work(job, snapshot, template, scale)) for job in snapshot.jobs),
        demands=demands,
        starts_s=starts_s,
        score=score_link([job.demand for job in snapshot.jobs], snapshot.capacity_bps).score,
        setting={
            "topology": "dumbbell",
            "repeat": template.repeat,
            "starts": "random" if random_starts else "together",
            "seed": seed,
            "capacity_bps": snapshot.capacity_bps,
            "time_scale": round(scale, 6),
            "profiles": "measured" if template.measured_profiles else "set",
        },
    )


def _work(job: DemandingJob, snapshot: Snapshot, template: Contest, scale: float) -> PhasedWork:
    rate_bps, change = template.link.rate_bps, template.change
    work = on_link(job.model, job.demand, snapshot.capacity_bps, rate_bps, template.ranks, scale)
    if change is not None and change.job == job.name:
        work = replace(work, change=ComputeChange(change.iteration, change.factor))
    return work


def _scaled(demand: Demand, snapshot: Snapshot, template: Contest, scale: float) -> Demand:
    """The demand on the lab's link."""
    share = template.link.rate_bps / snapshot.capacity_bps
    return Demand(
        tuple(
            Phase(round(phase.duration_ns * scale), round(phase.bandwidth_bps * share))
            for phase in demand.phases
        )
    )


def _random_starts_s(demands: dict[str, Demand], seed: str) -> tuple[float, ...]:
    """A moment within an iteration of each job."""
    chance = random.Random(seed)
    return tuple(chance.uniform(0, demand.iteration_ns / 1e9) for demand in demands.values())
