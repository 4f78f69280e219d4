"""Runs contests: the same jobs on the same link under every approach, interleaved.

Every repeat runs every approach once, one after the other, so that a drift of the machine affects all alike. The
isolated run of each job is one of the approaches, and the baseline of the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.compare.approach import Approach, Policy
from bench.compare.contest import Contest
from bench.compare.coordination import Coordination, PlacedDemand, coordinated, dumbbell_network
from bench.compare.launch import LabSource
from bench.compare.provider import HostProvider, Progress, ProviderSource, Turns
from bench.compare.results.journal import Keep
from bench.compare.results.runs import ApproachRun, HostUse, JobRun, LinkExcerpt, LinkTotals, Measured
from bench.lab.bottleneck import DirectionUse, LinkUse
from bench.workloads.job import JobResult
from mltcp.core.demand import Demand, demand_from_document
from mltcp.core.errors import MltcpError, UsageError

EXCERPT_S = 4.0
"""The pictures show four iterations, of at most 0.6 s each without contention."""

_SENDS, _SILENT = 0.05, 0.01
_SHORTEST_BINS = 5


def utilization(use: LinkUse, results: Sequence[JobResult]) -> float:
    """The share of the link's rate, left to right, that was used while all of these jobs ran."""
    direction = use.directions[0]
    start_s = min(result.iterations[0].start_s for result in results)
    end_s = min(result.iterations[-1].end_s for result in results)
    first, last = (int((at_s * 1e9 - use.epoch_ns) // use.bin_ns) for at_s in (start_s, end_s))
    carried = sum(sum(bins[first:last]) for bins in direction.bytes_by_job.values())
    return carried * 8e9 / (direction.rate_bps * max(1, last - first) * use.bin_ns)


def sole_utilization(directions: Sequence[DirectionUse], bin_ns: int) -> float | None:
    """The share of the link's rate that is used while exactly one job sends; None if no job sends alone for long.

    The first and the last bin of such a time are left out: the job fills them only in part.
    """
    shares: list[float] = []
    for direction in directions:
        full = direction.rate_bps * bin_ns / 8e9
        run: list[float] = []
        for bins in zip(*direction.bytes_by_job.values(), strict=True):
            carried = sorted(count / full for count in bins)
            if carried[-1] > _SENDS and sum(carried[:-1]) < _SILENT:
                run.append(carried[-1])
                continue
            shares += _inner(run)
            run = []
        shares += _inner(run)
    return sum(shares) / len(shares) if shares else None


def excerpts(use: LinkUse, names: Mapping[int, str], epoch_s: float, end_s: float) -> tuple[LinkExcerpt, ...]:
    """The first and the last seconds of the link's use, left to right.

    Args:
        use: the measurement.
        names: the jobs, by their numbers in the lab.
        epoch_s: the start of the run, CLOCK_MONOTONIC.
        end_s: the end of the first job to end, from then on.
    """
    direction = use.directions[0]
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


def _inner(run: Sequence[float]) -> Sequence[float]:
    return run[1:-1] if len(run) >= _SHORTEST_BINS else ()


_PROFILE = "MLTCP_PROFILE"
_LINK = "trunk"


def run_contests(
    contests: Sequence[Contest],
    progress: Progress,
    keep: Keep,
    retry_busy: int = 0,
    source: ProviderSource | None = None,
) -> list[Measured]:
    """Run the contests one after the other, each on hosts of its own.

    Args:
        contests: the jobs and approaches.
        progress: called after every iteration of a job.
        keep: called with all runs so far, after each run.
        retry_busy: how often a run is repeated that other programs disturbed.
        source: of the hosts; None: a lab on this machine.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is removed, and every host clean, by the time this is raised.
    """
    approaches = [approach for contest in contests for approach in contest.approaches]
    done: list[Measured] = []
    with (source or LabSource()).opened(approaches) as provide:
        for contest in contests:
            with provide(contest) as hosts:
                runs = _ContestRuns(contest, hosts)
                turns = Turns(contest.approaches, hosts.load_meter, contest.repeat, retry_busy)
                kept = appended(keep, done)
                measured = replace(contest.measured(), hosts=hosts.facts)
                done.append(turns.run(measured, runs.run, progress, kept))
    return done


def appended(keep: Keep, done: Sequence[Measured]) -> Callable[[Measured], None]:
    """Keeps what a contest has so far behind the contests that are done."""
    return lambda so_far: keep((*done, so_far))


@dataclass(frozen=True)
class _GroupRun:
    """Jobs that ran side by side.

    Attributes:
        results: by index.
        use: of the link.
        epoch_s: the start, CLOCK_MONOTONIC.
        hosts: the counters of real hosts.
    """

    results: Mapping[int, JobResult]
    use: LinkUse
    epoch_s: float
    hosts: tuple[HostUse, ...]


@dataclass
class _ContestRuns:
    """A contest on its hosts; `outcomes` are the losses and the parameters of each training in its first run."""

    contest: Contest
    hosts: HostProvider
    outcomes: dict[str, tuple[tuple[float, ...], str | None]] = field(default_factory=dict)

    def run(self, approach: Approach, repeat: int, progress: Progress) -> ApproachRun:
        """Run all jobs under the approach, once."""
        with self._coordinated(approach, repeat) as coordination:
            groups = [
                self._run_group(
                    group, approach, repeat, coordination, lambda: progress(approach.name, repeat)
                )
                for group in self.contest.groups(approach.isolated)
            ]
            epoch_s = groups[-1].epoch_s
            return ApproachRun(
                approach.name,
                repeat,
                self._job_runs(groups, approach.policy),
                coordination.decisions_s,
                sum(group.use.drops for group in groups),
                () if approach.isolated else self._excerpts(groups[-1]),
                coordination.shifts(epoch_s),
                _link_totals(groups),
                hosts=tuple(use for group in groups for use in group.hosts),
            )

    def _run_group(
        self,
        group: Sequence[int],
        approach: Approach,
        repeat: int,
        coordination: Coordination,
        step: Callable[[], None],
    ) -> _GroupRun:
        offsets = [0.0 if approach.isolated else self.contest.start_s(repeat, index) for index in group]

        def environment(job: str, rank: int) -> tuple[tuple[str, str], ...]:
            recorded = approach.isolated and rank == 0 and self.contest.measured_profiles
            profile = ((_PROFILE, str(self._profile(repeat, job))),) if recorded else ()
            return (*coordination.variables, *profile)

        outcome = self.hosts.run_group(
            approach.policy, group, step, offsets_s=offsets, environment=environment
        )
        results = outcome.results
        for result in results:
            self._check_outcome(result)
        epoch_s = min(
            result.iterations[0].start_s - offset for result, offset in zip(results, offsets, strict=True)
        )
        return _GroupRun(dict(zip(group, results, strict=True)), outcome.use, epoch_s, outcome.hosts)

    def _check_outcome(self, result: JobResult) -> None:
        """A training must have the same losses and parameters under every congestion control, to the bit."""
        outcome = result.losses, result.parameters_sha256
        if outcome != self.outcomes.setdefault(result.name, outcome):
            raise MltcpError(
                f"job {result.name}: its losses or parameters differ from those of its first run"
            )

    def _job_runs(self, groups: Sequence[_GroupRun], policy: Policy) -> tuple[JobRun, ...]:
        """The runs of all jobs; a job of which another of its kind has run alone has that one's."""
        found = {
            index: replace(
                _job_run(result, self.contest.policy_of(policy, index).control, group.epoch_s),
                ideal_s=self.contest.ideal_s(index),
            )
            for group in groups
            for index, result in group.results.items()
        }
        return tuple(
            replace(found.get(index) or found[self.contest.first_of_kind(index)], job=name)
            for index, (name, _) in enumerate(self.contest.jobs)
        )

    def _excerpts(self, group: _GroupRun) -> tuple[LinkExcerpt, ...]:
        names = {index: name for index, (name, _) in enumerate(self.contest.jobs)}
        end_s = min(result.iterations[-1].end_s for result in group.results.values()) - group.epoch_s
        return excerpts(group.use, names, group.epoch_s, end_s)

    @contextmanager
    def _coordinated(self, approach: Approach, repeat: int) -> Iterator[Coordination]:
        """The gate and the placement service of the approach, with all jobs made known to them."""
        contest, demands = self.contest, self.contest.demands
        if contest.measured_profiles and (approach.cassini or (approach.gate is not None and not demands)):
            demands = self._measured_demands(repeat)
        hosts = [
            (host.name, host.switch)
            for index in range(len(contest.jobs))
            for host in self.hosts.hosts_of(index)
        ]
        network = dumbbell_network(hosts, contest.link.rate_bps)
        with coordinated(
            approach, network, contest.link.rate_bps, directory=self.hosts.directory
        ) as coordination:
            for index, (name, _) in enumerate(contest.jobs if coordination.coordinators else ()):
                slots = tuple(host.name for host in self.hosts.hosts_of(index))
                iterations = contest.iterations_of(index)
                coordination.placed(PlacedDemand(name, slots, (_LINK,), demands[name], iterations))
            yield coordination

    def _profile(self, repeat: int, job: str) -> Path:
        """The file to which a job that runs alone writes its demand profile."""
        return self.hosts.directory / f"{repeat}-{job}.json"

    def _measured_demands(self, repeat: int) -> dict[str, Demand]:
        """The demands measured in the isolated runs of the repeat."""
        jobs = self.contest.jobs
        return {
            name: _measured_demand(self._profile(repeat, jobs[self.contest.first_of_kind(index)][0]), name)
            for index, (name, _) in enumerate(jobs)
        }


def _measured_demand(path: Path, job: str) -> Demand:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MltcpError(f"job {job}: its isolated run left no profile: {error}") from None
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
        losses=result.losses,
        parameters_sha256=result.parameters_sha256,
    )


def _link_totals(groups: Sequence[_GroupRun]) -> LinkTotals:
    """The totals of the link; the utilization by isolated jobs is their mean."""
    shares = [utilization(group.use, list(group.results.values())) for group in groups]
    return LinkTotals(
        retransmits=sum(result.retransmits for group in groups for result in group.results.values()),
        ecn_marks=sum(group.use.marks for group in groups),
        utilization=sum(shares) / len(shares),
        sole_utilization=sole_utilization(
            [group.use.directions[0] for group in groups], groups[0].use.bin_ns
        ),
    )
