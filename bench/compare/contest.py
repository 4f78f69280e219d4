"""Jobs that share one link, the approaches they run under, and how often; also of sets described by their demand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.compare.approach import Approach, Policy
from bench.compare.results.runs import Change, Measured, Scalar
from bench.lab.bottleneck import VIRTUAL_QUEUE
from bench.lab.link import Link
from bench.workloads.job import Perturbation, TrainingOptions, Work
from bench.workloads.model_work import ModelWork
from bench.workloads.phases import ComputeChange, PhasedWork, on_link, time_scale
from bench.workloads.profile import Profile, link_time_s
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.cassini.compatibility import score_link


@dataclass(frozen=True)
class Contest:
    """Jobs that share one link, and the approaches they run under.

    Attributes:
        jobs: the name and the work of each.
        approaches: in the order of the result.
        link: the bottleneck.
        iterations: of the slowest job; the others run as long.
        repeat: how often everything runs.
        ranks: of every job that does not say it itself, half of them on each side of the link.
        starts_s: for each repeat, by how much later each job starts; empty: all start together.
        perturbation: delays of iterations, in all runs but isolated ones.
        ecn_by: the mechanism that marks.
        name: of the set of jobs.
        setting: further conditions of the measurement, for the result.
        demands: of the jobs on this link, by name; needed by Cassini and gates.
        measured_profiles: whether Cassini works with the demands measured in the isolated runs instead.
        score: the compatibility score of the jobs.
        change: the change of a job's compute time that its work contains.
        device: where the ranks' tensors are.
        dilation: how many times as long the times of a set of jobs are, and with them its bytes, as usual.

    Raises:
        UsageError: an approach has a policy for each model, and a job has none, or a model no job.
    """

    jobs: tuple[tuple[str, Work], ...]
    approaches: tuple[Approach, ...]
    link: Link
    iterations: int
    repeat: int = 1
    ranks: int = 2
    starts_s: tuple[tuple[float, ...], ...] = ()
    perturbation: Perturbation | None = None
    ecn_by: str = VIRTUAL_QUEUE
    name: str = ""
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    demands: Mapping[str, Demand] = field(default_factory=dict)
    measured_profiles: bool = False
    score: float | None = None
    change: Change | None = None
    device: str = "cpu"
    dilation: float = 1.0

    def __post_init__(self) -> None:
        for approach in self.approaches if self.jobs else ():
            approach.policy.of([name for name, _ in self.jobs])

    @property
    def total_iterations(self) -> int:
        """The number of iterations of all jobs in all runs: the length of the progress bar."""
        groups = [group for approach in self.approaches for group in self.groups(approach.isolated)]
        return self.repeat * sum(self.iterations_of(index) for group in groups for index in group)

    def iterations_of(self, index: int) -> int:
        """The iterations of a job: ``iterations`` for the slowest, else as many as take as long."""
        times = [self._expected_s(work) for _, work in self.jobs]
        return round(self.iterations * max(times) / times[index])

    @property
    def job_ranks(self) -> tuple[int, ...]:
        """The ranks of each job."""
        return tuple(work.ranks if isinstance(work, ModelWork) else self.ranks for _, work in self.jobs)

    def groups(self, isolated: bool) -> list[list[int]]:
        """The jobs (by index) that run at the same time: all of them or, isolated, one job of each kind alone."""
        if not isolated:
            return [list(range(len(self.jobs)))]
        return [[index] for index in range(len(self.jobs)) if self.first_of_kind(index) == index]

    def first_of_kind(self, index: int) -> int:
        """The first job that does the same work as this one; its isolated run counts for both."""
        works = [work for _, work in self.jobs]
        return works.index(works[index])

    def start_s(self, repeat: int, index: int) -> float:
        """How much later than the first a job starts."""
        return self.starts_s[repeat][index] if self.starts_s else 0.0

    def measured(self) -> Measured:
        """The contest before its first run, with the conditions of the measurement."""
        conditions = {
            "rate_bps": self.link.rate_bps,
            "queue_bytes": self.link.queue_bytes,
            "ecn_threshold_bytes": self.link.ecn_threshold_bytes,
            **self.link.ramp,
            "ecn_by": self.ecn_by,
            "mtu": self.link.mtu,
            "ranks": self.ranks,
            "iterations": self.iterations,
        }
        return Measured(self.name, {**conditions, **self.setting}, (), self.score, self.change)

    def policy_of(self, policy: Policy, index: int) -> Policy:
        """What a job has of a policy that may have one for each model."""
        return policy.of([name for name, _ in self.jobs])[index]

    def ideal_s(self, index: int) -> float | None:
        """A job's iteration time alone if link and hosts were ideal; None: not known, as of what computes itself."""
        work = self.jobs[index][1]
        if isinstance(work, ModelWork | TrainingOptions) or self.change is not None:
            return None
        return self._expected_s(work)

    def _expected_s(self, work: Work) -> float:
        if isinstance(work, ModelWork):
            return work.isolated_iteration_s(self.link.rate_bps)
        if isinstance(work, TrainingOptions):
            return work.compute_s + link_time_s(4 * work.parameters, self.link.rate_bps, self.ranks)
        return work.isolated_iteration_s(self.link.rate_bps, self.ranks)


def named_jobs(works: Sequence[Work], names: Sequence[str]) -> tuple[tuple[str, Work], ...]:
    """Give every job a name of its own: ``vgg16`` twice becomes ``vgg16-1`` and ``vgg16-2``."""
    named = []
    for position, (name, work) in enumerate(zip(names, works, strict=True)):
        own = f"{name}-{names[: position + 1].count(name)}" if names.count(name) > 1 else name
        named.append((own, replace(work, name=name) if isinstance(work, Profile) else work))
    return tuple(named)


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
    scale = template.dilation * time_scale([job.demand.iteration_ns / 1e9 for job in snapshot.jobs])
    demands = {job.name: _scaled(job.demand, snapshot, template, scale) for job in snapshot.jobs}
    starts_s: tuple[tuple[float, ...], ...] = ()
    if random_starts:
        durations_s = [demand.iteration_ns / 1e9 for demand in demands.values()]
        starts_s = _random_starts_s(durations_s, f"{seed}/{snapshot.name}", template.repeat)
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


def _random_starts_s(durations_s: Sequence[float], seed: str, repeats: int) -> tuple[tuple[float, ...], ...]:
    """For each repeat a moment within an iteration of each job."""
    draws = (random.Random(f"{seed}/{repeat}") for repeat in range(repeats))
    return tuple(tuple(draw.uniform(0, each_s) for each_s in durations_s) for draw in draws)


def contest_of_models(
    jobs: Sequence[tuple[str, ModelWork]], template: Contest, *, random_starts: bool = False, seed: int = 0
) -> Contest:
    """The contest of real models, whose demands are those measured in the isolated runs.

    Raises:
        UsageError: an approach needs the demands, and they are not measured.
    """
    coordinated = [each for each in template.approaches if each.cassini or each.gate is not None]
    if coordinated and not template.measured_profiles:
        raise UsageError(
            f"--policies: {coordinated[0].name} works with the profiles of models as measured: expected `isolated` too"
        )
    if template.change is not None:
        raise UsageError(
            "--change: expected profiles or sets of jobs, whose computing can change, got models"
        )
    if template.dilation != 1:
        raise UsageError(
            "--dilate: expected profiles, sets or traces, got models, which have scale= and compute_ms="
        )
    name = ",".join(job for job, _ in jobs)
    durations_s = [work.isolated_iteration_s(template.link.rate_bps) for _, work in jobs]
    return replace(
        template,
        name=name,
        jobs=tuple(jobs),
        starts_s=_random_starts_s(durations_s, f"{seed}/{name}", template.repeat) if random_starts else (),
        setting={
            "topology": "dumbbell",
            "repeat": template.repeat,
            "starts": "random" if random_starts else "together",
            "seed": seed,
            "profiles": "measured",
        },
    )
