"""``mltcp-bench compare``: one set of jobs on one link under every approach, interleaved in one run.

Every repeat runs every approach once, one after the other, so that a drift of the machine falls on all alike. Each job
alone (``isolated``) is one of the approaches and, repeat by repeat, the yardstick of the others. Jobs start together,
or at random moments, which are the same for all approaches of a repeat.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.compare.approach import Approach
from bench.compare.contend import Contest, check_control, loaded_controls, run_group
from bench.compare.coordination import LINK, Coordination, PlacedDemand, Together, from_epoch
from bench.compare.gate import gated
from bench.compare.journal import Keep
from bench.compare.results import ApproachRun, Change, JobRun, LinkExcerpt, Measured
from bench.compare.service import dumbbell_network, served
from bench.lab.bottleneck.link_use import DirectionUse, LinkUse
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from bench.workloads.job import JobResult
from bench.workloads.phases import ComputeChange, PhasedWork, on_link, time_scale
from mltcp.core.demand import Demand, Phase, demand_from_document
from mltcp.core.errors import MltcpError, UsageError
from mltcp.ebpf.congestion_controls import Controls
from placement.cassini.compatibility import score_link

EXCERPT_S = 4.0
_PROFILE = "MLTCP_PROFILE"


@dataclass(frozen=True)
class DemandingJob:
    """A job by its name and its demand, on a link of the set's capacity; alike jobs have one model."""

    name: str
    model: str
    demand: Demand


@dataclass(frozen=True)
class Snapshot:
    """Jobs that share one link, described on a link of `capacity_bps`."""

    name: str
    capacity_bps: int
    jobs: tuple[DemandingJob, ...]


@dataclass(frozen=True)
class Plan:
    """How snapshots are compared.

    Attributes:
        approaches: in the order in which they run.
        link: that all jobs share.
        iterations: of the slowest job; the others run as long.
        repeat: how often everything runs.
        ranks: of every job, half of them on each side of the link.
        random_starts: whether jobs start at random moments of an iteration, instead of together.
        seed: of these moments.
        measured: whether Cassini is given profiles measured in the isolated runs, or those of the set.
        change: of one job's compute time, in mid-run.
        ecn_by: what marks.
    """

    approaches: tuple[Approach, ...]
    link: Link
    iterations: int
    repeat: int = 1
    ranks: int = 2
    random_starts: bool = False
    seed: int = 0
    measured: bool = True
    change: Change | None = None
    ecn_by: str = "virtual_queue"


Progress = Callable[[str, int], None]
"""Called with the approach's name and the repeat whenever a job has finished an iteration."""


def compare(snapshots: Sequence[Snapshot], plan: Plan, progress: Progress, keep: Keep) -> list[Measured]:
    """Compare the approaches on each snapshot, one after the other, in labs of their own.

    What has been measured goes to `keep` whenever an approach has run.

    Raises:
        UsageError: a job or an approach that this cannot be done with.
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is gone by the time this is raised.
    """
    contests = [_Comparison(snapshot, plan) for snapshot in snapshots]
    namespaces.require_privileges()
    with loaded_controls([approach.policy for approach in plan.approaches]) as controls:
        done: list[Measured] = []
        for contest in contests:
            done.append(contest.run(controls, progress, lambda so_far: keep((*done, so_far))))
        return done


def total_iterations(snapshots: Sequence[Snapshot], plan: Plan) -> int:
    """How many iterations of jobs a comparison consists of: the length of its progress bar."""
    return sum(_Comparison(snapshot, plan).total_iterations for snapshot in snapshots)


class _Comparison:
    """One snapshot under all approaches of the plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot, self._plan = snapshot, plan
        self.scale = time_scale([job.demand.iteration_ns / 1e9 for job in snapshot.jobs])
        jobs = tuple((job.name, self._work(job)) for job in snapshot.jobs)
        _check_change(plan.change, [job.name for job in snapshot.jobs])
        self._contest = Contest(
            jobs=jobs,
            policies=(),
            link=plan.link,
            iterations=plan.iterations,
            ranks=plan.ranks,
            ecn_by=plan.ecn_by,
        )
        self._demands = {job.name: self._scaled(job.demand) for job in snapshot.jobs}

    @property
    def total_iterations(self) -> int:
        """The iterations of all jobs under all approaches in all repeats."""
        groups = [group for approach in self._plan.approaches for group in self._groups(approach)]
        return self._plan.repeat * sum(
            self._contest.iterations_of(index) for group in groups for index in group
        )

    def run(self, controls: Controls, progress: Progress, keep: Callable[[Measured], None]) -> Measured:
        """Run every approach, every repeat, in a lab of this snapshot's."""
        measured = Measured(self._snapshot.name, self._setting(), (), self._score(), self._plan.change)
        runs: list[ApproachRun] = []
        topology = dumbbell(len(self._contest.jobs), self._plan.ranks, self._plan.link)
        with (
            Lab(topology, ecn_by=self._plan.ecn_by) as lab,
            tempfile.TemporaryDirectory("-compare") as directory,
        ):
            for repeat in range(self._plan.repeat):
                for approach in self._ordered():
                    live = _Live(approach, repeat, lab, controls, Path(directory), progress)
                    runs.append(self._run(live))
                    measured = replace(measured, runs=self._in_order(runs))
                    keep(measured)
        return measured

    def _in_order(self, runs: Sequence[ApproachRun]) -> tuple[ApproachRun, ...]:
        """In that of the plan, whatever that in which they ran."""
        order = [approach.name for approach in self._plan.approaches]
        return tuple(sorted(runs, key=lambda run: (run.repeat, order.index(run.approach))))

    def _ordered(self) -> list[Approach]:
        """Isolated runs come first in a repeat: they measure the profiles that Cassini works with."""
        return sorted(self._plan.approaches, key=lambda approach: not approach.isolated)

    def _work(self, job: DemandingJob) -> PhasedWork:
        plan = self._plan
        work = on_link(
            job.model, job.demand, self._snapshot.capacity_bps, plan.link.rate_bps, plan.ranks, self.scale
        )
        if plan.change is not None and plan.change.job == job.name:
            work = replace(work, change=ComputeChange(plan.change.iteration, plan.change.factor))
        return work

    def _scaled(self, demand: Demand) -> Demand:
        """The demand on the lab's link."""
        share = self._plan.link.rate_bps / self._snapshot.capacity_bps
        return Demand(
            tuple(
                Phase(round(phase.duration_ns * self.scale), round(phase.bandwidth_bps * share))
                for phase in demand.phases
            )
        )

    def _groups(self, approach: Approach) -> list[list[int]]:
        """The jobs (by index) that run at the same time: all of them, or each kind of job alone."""
        if not approach.isolated:
            return [list(range(len(self._contest.jobs)))]
        works = [work for _, work in self._contest.jobs]
        return [[index] for index, work in enumerate(works) if works.index(work) == index]

    def _run(self, live: _Live) -> ApproachRun:
        measured: dict[int, JobRun] = {}
        last: tuple[LinkUse, float] | None = None
        drops = 0
        with self._coordination(live) as coordination:
            for group in self._groups(live.approach):
                found, use, epoch_s = self._run_group(group, live, coordination)
                measured.update(found)
                drops += use.drops
                last = use, epoch_s
            assert last is not None
            return ApproachRun(
                live.approach.name,
                live.repeat,
                self._of_all(measured),
                coordination.decisions_s,
                drops,
                () if live.approach.isolated else self._excerpts(*last, measured),
                from_epoch(coordination.shifts, last[1]),
            )

    def _run_group(
        self, group: Sequence[int], live: _Live, coordination: Coordination
    ) -> tuple[dict[int, JobRun], LinkUse, float]:
        """Run some jobs side by side; also when the run began, by CLOCK_MONOTONIC."""
        starts = self._starts(live.repeat)
        names = [self._contest.jobs[index][0] for index in group]
        offsets = [0.0 if live.approach.isolated else starts[name] for name in names]

        def environment(job: str, rank: int) -> tuple[tuple[str, str], ...]:
            profile = ((_PROFILE, str(live.profile(job))),) if live.approach.isolated and rank == 0 else ()
            return (*coordination.variables, *profile)

        def step() -> None:
            live.progress(live.approach.name, live.repeat)

        found, use = run_group(
            self._contest,
            live.approach.policy,
            group,
            live.lab,
            live.controls,
            step,
            offsets_s=offsets,
            environment=environment,
        )
        results = [found[index] for index in group]
        for result in results:
            check_control(result, live.approach.policy)
        epoch_s = min(
            result.iterations[0].start_s - offset for result, offset in zip(results, offsets, strict=True)
        )
        runs = {index: _job_run(found[index], live.approach.policy.control, epoch_s) for index in group}
        return runs, use, epoch_s

    def _starts(self, repeat: int) -> dict[str, float]:
        """When each job starts: at once, or at a random moment of an iteration of its own."""
        if not self._plan.random_starts:
            return dict.fromkeys(self._demands, 0.0)
        chance = random.Random(f"{self._plan.seed}/{self._snapshot.name}/{repeat}")
        return {name: chance.uniform(0, demand.iteration_ns / 1e9) for name, demand in self._demands.items()}

    def _of_all(self, measured: Mapping[int, JobRun]) -> tuple[JobRun, ...]:
        """Of every job; of jobs that do the same, one has run alone for all."""
        works = [work for _, work in self._contest.jobs]
        return tuple(
            replace(measured.get(index) or measured[works.index(work)], job=name)
            for index, (name, work) in enumerate(self._contest.jobs)
        )

    @contextmanager
    def _coordination(self, live: _Live) -> Iterator[Coordination]:
        rate_bps = self._plan.link.rate_bps
        with ExitStack() as stack:
            parts: list[Coordination] = []
            demands = self._demands
            if live.approach.gate is not None:
                parts.append(stack.enter_context(gated(live.approach.gate, rate_bps)))
            if live.approach.cassini:
                demands = self._profiles(live) if self._plan.measured else self._demands
                hosts = [(host.name, host.switch) for host in live.lab.topology.hosts]
                parts.append(stack.enter_context(served(dumbbell_network(hosts, rate_bps))))
            together = Together(parts)
            for index, (name, _) in enumerate(self._contest.jobs):
                slots = tuple(host.name for host in live.lab.topology.hosts_of(index))
                iterations = self._contest.iterations_of(index)
                together.placed(PlacedDemand(name, slots, (LINK,), demands[name], iterations))
            yield together

    def _profiles(self, live: _Live) -> dict[str, Demand]:
        """As measured in the isolated runs of this repeat; of jobs that do the same, one was measured for all."""
        works = dict(self._contest.jobs)
        found = {}
        for name, work in works.items():
            measured = next(other for other, same in works.items() if same == work)
            path = live.profile(measured)
            try:
                document = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise MltcpError(f"job {name}: its isolated run left no profile: {error}") from None
            found[name] = _demand_in(document, name)
        return found

    def _excerpts(
        self, use: LinkUse, epoch_s: float, measured: Mapping[int, JobRun]
    ) -> tuple[LinkExcerpt, ...]:
        """Who used the link in the first and in the last seconds in which all jobs ran."""
        names = {index: name for index, (name, _) in enumerate(self._contest.jobs)}
        end_s = min(run.ended_s for run in measured.values())
        return excerpts(use.directions[0], use, names, epoch_s, end_s)

    def _score(self) -> float:
        demands = [job.demand for job in self._snapshot.jobs]
        return score_link(demands, self._snapshot.capacity_bps).score

    def _setting(self) -> dict[str, str | int | float | bool | None]:
        link = self._plan.link
        return {
            "topology": "dumbbell",
            "rate_bps": link.rate_bps,
            "queue_bytes": link.queue_bytes,
            "ecn_threshold_bytes": link.ecn_threshold_bytes,
            "ecn_by": self._plan.ecn_by,
            "mtu": link.mtu,
            "ranks": self._plan.ranks,
            "iterations": self._plan.iterations,
            "repeat": self._plan.repeat,
            "starts": "random" if self._plan.random_starts else "together",
            "seed": self._plan.seed,
            "capacity_bps": self._snapshot.capacity_bps,
            "time_scale": round(self.scale, 6),
            "profiles": "measured" if self._plan.measured else "set",
        }


@dataclass(frozen=True)
class _Live:
    """One run of one approach: where, and who is told."""

    approach: Approach
    repeat: int
    lab: Lab
    controls: Controls
    directory: Path
    progress: Progress

    def profile(self, job: str) -> Path:
        """The file in which a job that runs alone leaves its profile."""
        return self.directory / f"{self.repeat}-{job}.json"


def excerpts(
    direction: DirectionUse, use: LinkUse, names: Mapping[int, str], epoch_s: float, end_s: float
) -> tuple[LinkExcerpt, ...]:
    """The first and the last seconds of a direction's use; `epoch_s` is the run's start, `end_s` counts from it."""
    bin_s = use.bin_ns / 1e9
    zero = round((epoch_s - use.epoch_ns / 1e9) / bin_s)
    last, count = round(end_s / bin_s), round(EXCERPT_S / bin_s)
    found = []
    for first in dict.fromkeys((0, max(0, last - count))):
        bins = slice(zero + first, zero + min(first + count, last))
        job_bytes = {name: list(direction.bytes_by_job[index][bins]) for index, name in names.items()}
        link = f"{direction.source}->{direction.target}"
        found.append(LinkExcerpt(link, direction.rate_bps, first * bin_s, bin_s, job_bytes))
    return tuple(found)


def _demand_in(document: object, job: str) -> Demand:
    try:
        return demand_from_document(document)
    except UsageError as error:
        raise MltcpError(f"job {job}, isolated: {error}; more --iterations, or --profiles set") from None


def _job_run(result: JobResult, control: str, epoch_s: float) -> JobRun:
    return JobRun(
        job=result.name,
        control=control,
        iteration_s=tuple(one.duration_s for one in result.iterations),
        began_s=tuple(one.start_s - epoch_s for one in result.iterations),
        arrival_s=0.0,
        ended_s=result.iterations[-1].end_s - epoch_s,
        marks=result.delivered_ce_segments,
        retransmits=result.retransmits,
    )


def _check_change(change: Change | None, jobs: Sequence[str]) -> None:
    if change is not None and change.job not in jobs:
        raise UsageError(f"--change: no job {change.job!r} in the set; there are {', '.join(jobs)}")
