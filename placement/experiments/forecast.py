"""What jobs in their places want of links, and the slowdowns that they settle at, from short simulations.

Slowdowns are means over the second half of a simulated time, over an iteration alone under the base control. Jobs start
together unless they say otherwise, which is the worst that equal jobs can do under fair shares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Self

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.outcome import JobCourse, NetworkOutcome
from placement.simulator.network.routing import Route, RoutingTable
from placement.simulator.network.simulation import SimulationSettings, default_step_ns, simulate
from placement.simulator.network.topology import CLASSES, ClassQueues, Network, Pause
from placement.simulator.network.traffic import IterationStep, NetworkJob, Traffic, meeting_sets

_MEET = 1.001
"""Jobs meet on a link if their highest demands come to more than this part of its rate."""


# -- what jobs want of links -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IterationTimeline:
    """One iteration of a job alone: how long it takes, and when which link carries how much of it.

    Attributes:
        duration_ns: of the iteration.
        sends: of each step that sends: its beginning, its end (ns), and its bytes by link.
        spans_ns: of each message, its time at the rate of its slowest link.
        lasts_ns: of each step, the time for which it sends.
    """

    duration_ns: float
    sends: tuple[tuple[float, float, Mapping[int, float]], ...]
    spans_ns: tuple[float, ...]
    lasts_ns: tuple[float, ...]

    @cached_property
    def bytes_on(self) -> Mapping[int, float]:
        """The bytes of an iteration by link."""
        total: dict[int, float] = defaultdict(float)
        for _, _, carried in self.sends:
            for link, size in carried.items():
                total[link] += size
        return total

    def demand_on(self, link: int) -> Demand:
        """The phases of the iteration on a link, to the nanosecond."""
        changes: dict[int, float] = defaultdict(float, {0: 0.0, round(self.duration_ns): 0.0})
        for begin, end, carried in self.sends:
            first, last = round(begin), round(end)
            if link in carried and last > first:
                rate_bps = carried[link] * 8e9 / (last - first)
                changes[first] += rate_bps
                changes[last] -= rate_bps
        times, rate_bps, phases = sorted(changes), 0.0, []
        for begin, end in pairwise(times):
            rate_bps += changes[begin]
            phases.append(Phase(end - begin, max(0, round(rate_bps))))
        return Demand(tuple(phases))


def timeline_of(network: Network, job: NetworkJob, ways: Sequence[Route]) -> IterationTimeline:
    """The iteration of a job alone, whose steps do not slow each other down.

    Raises:
        UsageError: an iteration that takes no time.
    """
    ends: list[float] = []
    sends, spans, lasts, left = [], [], [], iter(ways)
    for step in job.traffic.steps:
        begin = max((ends[before] for before in step.after), default=0.0) + step.compute_ns
        carried: dict[int, float] = defaultdict(float)
        longest = 0.0
        for message in step.messages:
            way = next(left)
            rates = [step.rate_bps, *(network.links[link].rate_bps for link in way)]
            spans.append(message.size_bytes * 8e9 / min(rates))
            longest = max(longest, spans[-1])
            for link in way:
                carried[link] += message.size_bytes
        longest = max(
            [longest, *(size * 8e9 / network.links[link].rate_bps for link, size in carried.items())]
        )
        lasts.append(longest)
        ends.append(begin + longest)
        if carried:
            sends.append((begin, begin + longest, carried))
    duration_ns = max(ends, default=0.0)
    if duration_ns < 1:
        raise UsageError(f"job {job.name}: expected an iteration that takes time, got one that takes none")
    return IterationTimeline(duration_ns, tuple(sends), tuple(spans), tuple(lasts))


@dataclass(frozen=True)
class LinkLoad:
    """What jobs want of a link that cannot carry all of them at once.

    Attributes:
        link: its number.
        jobs: the numbers of the jobs that use it.
        load: the sum of the parts of its rate that their iterations take alone.
    """

    link: int
    jobs: tuple[int, ...]
    load: float


@dataclass(frozen=True)
class PlacedJobs:
    """Jobs in their places, with the routes of their messages."""

    network: Network
    jobs: tuple[NetworkJob, ...]
    table: RoutingTable
    routes: tuple[tuple[Route, ...], ...]
    timelines: tuple[IterationTimeline, ...]
    seed: int = 0

    @classmethod
    def of(cls, network: Network, jobs: Iterable[NetworkJob], seed: int = 0) -> Self:
        """The jobs with the routes that ECMP chooses by this seed."""
        placed, table = tuple(jobs), RoutingTable(network)
        routes = tuple(table.routes(job, seed) for job in placed)
        timelines = tuple(timeline_of(network, *each) for each in zip(placed, routes, strict=True))
        return cls(network, placed, table, routes, timelines, seed)

    def only(self, numbers: Sequence[int]) -> Self:
        """Some of the jobs."""
        return replace(
            self,
            jobs=tuple(self.jobs[each] for each in numbers),
            routes=tuple(self.routes[each] for each in numbers),
            timelines=tuple(self.timelines[each] for each in numbers),
        )

    def moved(self, number: int, places: Sequence[tuple[int, int]]) -> Self:
        """The same with the workers of one job on other GPUs: (host, GPU) each."""
        hosts, slots = zip(*places, strict=True)
        job = replace(self.jobs[number], hosts=hosts, slots=slots)
        ways = self.table.routes(job, self.seed)

        def changed(values: Sequence, value: object) -> tuple:
            return (*values[:number], value, *values[number + 1 :])

        return replace(
            self,
            jobs=changed(self.jobs, job),
            routes=changed(self.routes, ways),
            timelines=changed(self.timelines, timeline_of(self.network, job, ways)),
        )

    @cached_property
    def loads(self) -> tuple[LinkLoad, ...]:
        """The links on which jobs can meet, the one with the highest load first."""
        users: dict[int, list[int]] = defaultdict(list)
        for number, timeline in enumerate(self.timelines):
            for link, size in timeline.bytes_on.items():
                if size > 0:
                    users[link].append(number)
        found = []
        for link, jobs in users.items():
            rate_bps = self.network.links[link].rate_bps
            if len(jobs) < 2 or sum(self._peak_bps(job, link) for job in jobs) <= _MEET * rate_bps:
                continue
            load = sum(
                self.timelines[job].bytes_on[link] * 8e9 / self.timelines[job].duration_ns for job in jobs
            )
            found.append(LinkLoad(link, tuple(jobs), load / rate_bps))
        return tuple(sorted(found, key=lambda each: (-each.load, each.link)))

    def _peak_bps(self, job: int, link: int) -> float:
        sends = self.timelines[job].sends
        return max(
            each[link] * 8e9 / (end - begin) for begin, end, each in sends if link in each and end > begin
        )

    @property
    def meeting(self) -> list[tuple[int, ...]]:
        """The sets of two or more jobs that meet, directly or over others, each in order."""
        return meeting_sets(len(self.jobs), (load.jobs for load in self.loads))


# -- simulations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForecastEffort:
    """How much simulation a forecast may take.

    Attributes:
        iterations: of the job whose iterations are longest, of which the second half counts.
        seeds: of noise, over which slowdowns are averaged.
        flow_steps: that one simulation by steps may take; beyond that it gets coarser and shorter, and then goes by
            shares. None: no limit, and everything by steps.
    """

    iterations: int = 40
    seeds: tuple[int, ...] = (0,)
    flow_steps: float | None = 2.5e6


ORDERING = ForecastEffort(flow_steps=0)
"""By shares: to compare orders of priority."""

QUICK = ForecastEffort()
"""For an answer within a second."""

FULL = ForecastEffort(60, (0, 1, 2), None)
"""The simulator by itself: what forecasts are compared with."""

_COARSEST = 4
_COARSER = ((1.0, 1), (1.0, 2), (0.6, 2), (0.6, _COARSEST), (0.4, _COARSEST))
"""The parts of the iterations and the multiples of the step that are tried."""

_PERIMETERS = 3
_PAUSE = Pause(400e3, 300e3)


@dataclass(frozen=True)
class Forecast:
    """What became of jobs.

    Attributes:
        durations_ns: of an iteration of each, on average.
        alone_ns: of an iteration of each without the others.
        mode: of the simulation: steps or shares.
    """

    durations_ns: tuple[float, ...]
    alone_ns: tuple[float, ...]
    mode: str

    def slowdowns(self, base: Forecast | None = None) -> tuple[float, ...]:
        """Over an iteration alone under the base, if that was found in the same mode."""
        alone_ns = self.alone_ns if base is None or base.mode != self.mode else base.alone_ns
        return tuple(each / alone for each, alone in zip(self.durations_ns, alone_ns, strict=True))


def settled(placed: PlacedJobs, law: NetworkLaw, effort: ForecastEffort) -> Forecast:
    """The iterations of jobs that run side by side, after the first half of the time."""
    placed = _thinned(placed) if effort.flow_steps is not None else placed
    return _side_by_side(placed, law, effort.seeds, *_affordable(placed, effort))


def by_priority(
    placed: PlacedJobs, law: NetworkLaw, order: Sequence[int], effort: ForecastEffort
) -> Forecast:
    """The same where every port has strict priorities by class, and jobs classes by this order, the first 7.

    DCQCN gets ports that pause: a class that is not served sees no marks.
    """
    placed = _thinned(placed) if effort.flow_steps is not None else placed
    pause = _PAUSE if law.control is Control.DCQCN else None
    hosts = set(placed.network.hosts)
    links = tuple(
        replace(link, classes=ClassQueues(), pause=link.pause or (None if link.source in hosts else pause))
        for link in placed.network.links
    )
    classes = {job: max(0, CLASSES - 1 - position) for position, job in enumerate(order)}
    jobs = tuple(replace(job, traffic_class=classes[number]) for number, job in enumerate(placed.jobs))
    classed = replace(placed, network=replace(placed.network, links=links), jobs=jobs)
    return _side_by_side(classed, law, effort.seeds, *_affordable(placed, effort))


def by_timetable(
    placed: PlacedJobs,
    law: NetworkLaw,
    shifts_ns: Sequence[int],
    perimeter_ns: int,
    repeats: Sequence[int],
    effort: ForecastEffort,
) -> Forecast:
    """The same with time shifts: each job begins at its own and waits, after each iteration, for the end of its period.

    On the timetable the latest job is waited for: all take as long as the one that takes longest for the circle.
    """
    placed = _thinned(placed) if effort.flow_steps is not None else placed
    mode, step_ns = "steps", default_step_ns(placed.network, placed.routes)
    if effort.flow_steps is not None:
        needed = _flow_steps(placed, _PERIMETERS * perimeter_ns, step_ns) / effort.flow_steps
        step_ns *= max(1, math.ceil(needed))
        mode = "steps" if needed <= _COARSEST else "shares"
    jobs = []
    for job, timeline, shift, repeat in zip(placed.jobs, placed.timelines, shifts_ns, repeats, strict=True):
        waits_ns = max(0, round(perimeter_ns / repeat - timeline.duration_ns))
        jobs.append(
            replace(_waiting(job, waits_ns), start_ns=shift, law=law, iterations=_PERIMETERS * repeat)
        )
    durations: list[float] = []
    alone: tuple[float, ...] = ()
    for seed in effort.seeds:
        outcome = _simulated(replace(placed, jobs=tuple(jobs)), mode, seed, None, step_ns)
        took = [
            (float(course.ends_ns[-1]) - shift) / _PERIMETERS
            for course, shift in zip(outcome.jobs, shifts_ns, strict=True)
        ]
        durations.append(max(perimeter_ns, *took))
        alone = tuple(
            course.alone_ns - _waits_ns(job) for course, job in zip(outcome.jobs, jobs, strict=True)
        )
    return Forecast(tuple(fmean(durations) / repeat for repeat in repeats), alone, mode)


def _waiting(job: NetworkJob, waits_ns: int) -> NetworkJob:
    """The job with a step at the end of its iterations that waits."""
    steps = job.traffic.steps
    last = IterationStep(waits_ns, (), tuple(range(len(steps))))
    return replace(job, traffic=Traffic(job.traffic.workers, (*steps, last)))


def _waits_ns(job: NetworkJob) -> int:
    return job.traffic.steps[-1].compute_ns


def _side_by_side(
    placed: PlacedJobs, law: NetworkLaw, seeds: Sequence[int], mode: str, iterations: int, coarser: int
) -> Forecast:
    span_ns = math.ceil(iterations * max(each.duration_ns for each in placed.timelines))
    jobs = tuple(
        replace(job, law=law, iterations=math.ceil(span_ns / timeline.duration_ns) + 1)
        for job, timeline in zip(placed.jobs, placed.timelines, strict=True)
    )
    step_ns = coarser * default_step_ns(placed.network, placed.routes)
    runs = [_simulated(replace(placed, jobs=jobs), mode, seed, span_ns, step_ns) for seed in seeds]
    durations = zip(*([_settled_ns(course, span_ns) for course in run.jobs] for run in runs), strict=True)
    return Forecast(
        tuple(fmean(of_job) for of_job in durations), tuple(course.alone_ns for course in runs[0].jobs), mode
    )


def _settled_ns(course: JobCourse, span_ns: int) -> float:
    """The mean duration of the iterations that began in the second half; at least that of one that did not end."""
    durations = course.ends_ns - course.begins_ns
    late = durations[course.begins_ns >= span_ns / 2]
    if len(late):
        return float(late.mean())
    since_ns = float(course.ends_ns[-1]) if len(durations) else 0.0
    return max(span_ns - since_ns, float(durations[-1]) if len(durations) else 0.0)


def _simulated(
    placed: PlacedJobs, mode: str, seed: int, span_ns: int | None, step_ns: int | None
) -> NetworkOutcome:
    settings = SimulationSettings(mode, seed, 1 << 60 if span_ns is None else span_ns, step_ns)
    return simulate(placed.network, placed.jobs, placed.routes, settings)


# -- within a budget ---------------------------------------------------------------------------------------------------


def _affordable(placed: PlacedJobs, effort: ForecastEffort) -> tuple[str, int, int]:
    """The mode, the iterations and the multiple of the step that keep to the budget."""
    if effort.flow_steps is None:
        return "steps", effort.iterations, 1
    longest_ns = max(each.duration_ns for each in placed.timelines)
    of_iteration = _flow_steps(placed, longest_ns, default_step_ns(placed.network, placed.routes))
    for part, coarser in _COARSER:
        iterations = round(part * effort.iterations)
        if of_iteration * iterations / coarser <= effort.flow_steps:
            return "steps", iterations, coarser
    return "shares", effort.iterations, 1


def _flow_steps(placed: PlacedJobs, span_ns: float, step_ns: int) -> float:
    """How often a flow that sends is simulated for a step in so much time, were each job alone."""
    return sum(sum(each.spans_ns) * span_ns / each.duration_ns for each in placed.timelines) / step_ns


def _thinned(placed: PlacedJobs) -> PlacedJobs:
    """The same without messages that meet no other job's and end no step: their time becomes computing."""
    contended = {load.link for load in placed.loads}
    found = [
        _without_lonely(*each, contended)
        for each in zip(placed.jobs, placed.routes, placed.timelines, strict=True)
    ]
    return replace(
        placed,
        jobs=tuple(job for job, _, _ in found),
        routes=tuple(ways for _, ways, _ in found),
        timelines=tuple(timeline for _, _, timeline in found),
    )


def _without_lonely(
    job: NetworkJob, ways: Sequence[Route], timeline: IterationTimeline, contended: set[int]
) -> tuple[NetworkJob, tuple[Route, ...], IterationTimeline]:
    steps, kept_ways, kept_spans, at = [], [], [], 0
    for step, lasts_ns in zip(job.traffic.steps, timeline.lasts_ns, strict=True):
        own = range(at, at + len(step.messages))
        at += len(step.messages)
        kept = _kept_messages(own, ways, timeline.spans_ns, contended)
        messages = tuple(step.messages[each - own.start] for each in kept)
        computes_ns = step.compute_ns + (0 if kept else round(lasts_ns))
        steps.append(replace(step, messages=messages, compute_ns=computes_ns))
        kept_ways += [ways[each] for each in kept]
        kept_spans += [timeline.spans_ns[each] for each in kept]
    thin = replace(job, traffic=Traffic(job.traffic.workers, tuple(steps)))
    return thin, tuple(kept_ways), replace(timeline, spans_ns=tuple(kept_spans))


def _kept_messages(
    own: range, ways: Sequence[Route], spans_ns: Sequence[float], contended: set[int]
) -> list[int]:
    """Those on contended links, those that share a link with one of them, and one that takes longer."""
    first = [each for each in own if not contended.isdisjoint(ways[each])]
    if not first:
        return []
    near = {link for each in first for link in ways[each]}
    kept = [each for each in own if not near.isdisjoint(ways[each])]
    longest = max(own, key=lambda each: spans_ns[each])
    if spans_ns[longest] > max(spans_ns[each] for each in kept):
        kept.append(longest)
    return sorted(kept)
