"""Simulates jobs in a network: `simulate` with `SimulationSettings`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import UsageError, shown
from placement.simulator.network.failures import NetworkChange
from placement.simulator.network.outcome import JobCourse, LinkUse, LostTime, NetworkOutcome
from placement.simulator.network.topology import CLASSES, Network
from placement.simulator.network.traffic import NetworkJob, Routes

if TYPE_CHECKING:
    from placement.simulator.network.steps.records import StepState

MODES = ("steps", "shares", "auto")
_ROUNDING = 1e-9
_ALONE_ITERATIONS = 3
_LARGEST_GROWTH_BYTES = 32e3
_SHORTEST_STEP_NS, _LONGEST_STEP_NS = 500, 20_000
_LONGEST_NS = (1 << 62) // 1000
"""So that picoseconds fit into 64 bits."""


@dataclass(frozen=True)
class SimulationSettings:
    """How to simulate.

    Attributes:
        mode: one of `MODES`.
        seed: of all that is drawn.
        duration_ns: when to stop, unless all jobs have ended before.
        step_ns: of the mode `steps`; None: `default_step_ns`.
        attributes: whether steps attribute lost time to links and neighbours (`LostTime`), as shares always do; they
            take longer then.

    Raises:
        UsageError: a mode that there is not, or times that are not above 0.
    """

    mode: str = "steps"
    seed: int = 0
    duration_ns: int = 1 << 60
    step_ns: int | None = None
    attributes: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode: expected one of {', '.join(MODES)}, got {shown(self.mode)}")
        if self.duration_ns <= 0:
            raise UsageError(f"duration_ns: expected above 0, got {self.duration_ns}")
        if self.step_ns is not None and self.step_ns <= 0:
            raise UsageError(f"step_ns: expected above 0, got {self.step_ns}")


def default_step_ns(network: Network, routes: Routes) -> int:
    """A quarter of the shortest round trip, but no more than lets a queue grow by 32 kB; 0.5 to 20 us."""
    ways = [way for ways in routes for way in ways if way]
    if not ways:
        return _LONGEST_STEP_NS
    one_way_ns = min(sum(network.links[link].delay_ns for link in way) for way in ways)
    return _step_ns(one_way_ns, max(network.links[link].rate_bps for way in ways for link in way))


def shortest_step_ns(network: Network) -> int:
    """`default_step_ns` for the shortest ways, over one switch, and the fastest links of a network."""
    hosts = set(network.hosts)
    ends = [
        [link for link in network.links if link.source in hosts],
        [link for link in network.links if link.target in hosts],
    ]
    one_way_ns = sum(min((link.delay_ns for link in links), default=0) for links in ends)
    return _step_ns(one_way_ns, max((link.rate_bps for link in network.links), default=1.0))


def _step_ns(one_way_ns: float, fastest_bps: float) -> int:
    step = min(one_way_ns / 2, _LARGEST_GROWTH_BYTES * 8e9 / fastest_bps)
    return max(_SHORTEST_STEP_NS, min(_LONGEST_STEP_NS, int(step)))


def simulate(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
    changes: Sequence[NetworkChange] = (),
) -> NetworkOutcome:
    """Run the jobs until all have ended, or for `duration_ns`.

    Args:
        network: its hosts and links.
        jobs: with different names.
        routes: of their messages.
        settings: of the simulation.
        changes: of links that are down, and of routes, in the order of time.

    Raises:
        UsageError: routes or hosts that do not fit the network, or values out of range.
    """
    check(network, jobs, routes)
    for change in changes:
        if change.routes is not None:
            check(network, jobs, change.routes)
    for job in jobs if settings.mode != "steps" else ():
        if job.holds_ns:
            raise UsageError(f"job {job.name}: holds_ns: expected none in the mode {settings.mode}")
    if settings.mode == "shares":
        from placement.simulator.network.shares import ShareSettings, run_shares

        of_shares = ShareSettings(settings.seed, settings.duration_ns, attributes=True)
        return run_shares(network, jobs, routes, of_shares, changes)
    if settings.mode == "auto":
        return _run_auto(network, jobs, routes, settings, changes)
    return run_steps(network, jobs, routes, settings, changes)


def run_steps(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
    changes: Sequence[NetworkChange] = (),
) -> NetworkOutcome:
    """The mode `steps`; see `simulate`, which checks its arguments."""
    step_ns = settings.step_ns or default_step_ns(network, routes)
    alone = [_alone_ns(network, job, ways, settings, step_ns) for job, ways in zip(jobs, routes, strict=True)]
    state, ended = _run(network, jobs, routes, settings, step_ns, changes)
    courses = tuple(
        JobCourse(job.name, *iterations, each, *_marked_and_lost(state, number))
        for number, (job, iterations, each) in enumerate(zip(jobs, _iterations(state), alone, strict=True))
    )
    links = tuple(
        LinkUse(link.name, *(_use(state, number, name) for name in ("sent", "marked", "dropped", "largest")))
        for number, link in enumerate(network.links)
    )
    return NetworkOutcome(courses, links, ended, _lost(state) if settings.attributes else None)


def _alone_ns(
    network: Network,
    job: NetworkJob,
    ways: Sequence[Sequence[int]],
    settings: SimulationSettings,
    step_ns: int,
) -> float:
    """The shortest of the job's first iterations without other jobs and noise, on the links that it uses."""
    single = replace(
        job,
        iterations=min(job.iterations, _ALONE_ITERATIONS),
        start_ns=0,
        noise_ns=0,
        measured_noise_ns=(),
        holds_ns=(),
    )
    numbers = {link: number for number, link in enumerate(sorted({link for way in ways for link in way}))}
    own = replace(network, links=tuple(network.links[link] for link in numbers))
    routes = [[tuple(numbers[link] for link in way) for way in ways]]
    state, _ = _run(own, [single], routes, replace(settings, duration_ns=1 << 60, attributes=False), step_ns)
    begins_ns, ends_ns = _iterations(state)[0]
    alone_ns = float((ends_ns - begins_ns).min())
    if alone_ns == 0:
        raise UsageError(f"job {job.name}: expected an iteration that takes time, got one that takes none")
    return alone_ns


def _run(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
    step_ns: int,
    changes: Sequence[NetworkChange] = (),
) -> tuple[StepState, int]:
    """The state at the end, and when that was."""
    from placement.simulator.network.steps.build import build
    from placement.simulator.network.steps.changes import changed
    from placement.simulator.network.steps.loop import TO_STEP, TO_TIME, UNFINISHED, advance, begin_jobs
    from placement.simulator.network.steps.lost import attributing

    state = build(network, jobs, routes, settings.seed)
    if settings.attributes:
        state = attributing(state)
    begin_jobs(state)
    for change in changes:
        if change.at_ns >= settings.duration_ns or not state.counts[UNFINISHED]:
            break
        advance(state, step_ns, change.at_ns, TO_STEP)
        state = changed(state, network, change.at_ns, change.down, dict(enumerate(change.routes or ())))
    return state, int(advance(state, step_ns, settings.duration_ns, TO_TIME))


def _lost(state: StepState) -> LostTime:
    from placement.simulator.network.steps.lost import lost_time

    return lost_time(state)


def _iterations(state: StepState) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """When those of each job that have ended began and ended."""
    spans = [(job["first_row"], job["first_row"] + job["iteration"]) for job in state.jobs]
    return [(state.begins[first:last], state.ends[first:last]) for first, last in spans]


def _marked_and_lost(state: StepState, job: int) -> tuple[float, float]:
    flows = state.flows[state.flows["job"] == job]
    return float(flows["marked_in_all"].sum()), float(flows["lost_in_all"].sum())


def _use(state: StepState, number: int, name: str) -> float:
    """Of a link with queues for classes: the sum over them, or their longest queue."""
    first = state.links[number]["queues"]
    values = state.links[name][first : first + CLASSES] if first else state.links[name][[number]]
    return float(values.max() if name == "largest" else values.sum())


# -- the mode auto ------------------------------------------------------------------------------


def _run_auto(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
    changes: Sequence[NetworkChange],
) -> NetworkOutcome:
    """The mode `auto`: jobs that could contend in steps, group by group, without the rest; the others by shares.

    Two jobs are in a group if they could contend on a link, or both are in one with a third.
    """
    by_shares = replace(settings, mode="shares")
    step_ns = settings.step_ns or default_step_ns(network, routes)
    in_steps = replace(settings, mode="steps", step_ns=step_ns)
    groups = _groups(
        network, jobs, [routes, *(change.routes for change in changes if change.routes is not None)]
    )
    runs = [(group, in_steps) for group in groups if len(group) > 1]
    alone = [group[0] for group in groups if len(group) == 1]
    if alone:
        runs.append((alone, by_shares))
    courses: dict[int, JobCourse] = {}
    outcomes, lost = [], []
    for group, of_group in runs:
        outcome = simulate(
            network,
            [jobs[number] for number in group],
            [routes[number] for number in group],
            of_group,
            [change.of_jobs(group) for change in changes],
        )
        courses.update(zip(group, outcome.jobs, strict=True))
        outcomes.append(outcome)
        if outcome.lost is not None:
            lost.append((group, outcome.lost))
    links = tuple(_joined(uses) for uses in zip(*(outcome.links for outcome in outcomes), strict=True))
    return NetworkOutcome(
        tuple(courses[number] for number in range(len(jobs))),
        links,
        max(outcome.ended_ns for outcome in outcomes),
        LostTime.joined(lost, len(jobs)) if settings.attributes else None,
    )


def asked_bps(network: Network, job: NetworkJob, routes: Sequence[Sequence[int]]) -> dict[int, float]:
    """What a job may ask of each of its links at once: all of its connections, each at its highest rate."""
    rates = [link.rate_bps for link in network.links]
    peaks: dict[tuple[int, int, int, tuple[int, ...]], float] = {}
    ways = iter(routes)
    for step in job.traffic.steps:
        for message in step.messages:
            way = tuple(next(ways))
            key = message.source, message.target, message.connection, way
            peak = min((rates[link] for link in way), default=0.0)
            peaks[key] = max(peaks.get(key, 0.0), min(peak, step.rate_bps))
    asked: dict[int, float] = defaultdict(float)
    for (*_, way), peak in peaks.items():
        for link in way:
            asked[link] = min(rates[link], asked[link] + peak)
    return dict(asked)


def contending_jobs(network: Network, asks_bps: Mapping[int, Mapping[int, float]]) -> list[list[int]]:
    """For each link of which several jobs may at once ask more than it carries, these jobs.

    Args:
        network: the links.
        asks_bps: `asked_bps` of each job.
    """
    asked: dict[int, float] = defaultdict(float)
    users: dict[int, list[int]] = defaultdict(list)
    for number, asks in asks_bps.items():
        for link, bps in asks.items():
            asked[link] += bps
            users[link].append(number)
    return [
        numbers
        for link, numbers in users.items()
        if len(numbers) > 1 and asked[link] > network.links[link].rate_bps * (1 + _ROUNDING)
    ]


def _groups(network: Network, jobs: Sequence[NetworkJob], of_times: Sequence[Routes]) -> list[list[int]]:
    """The groups of jobs that could contend with one of these routes, and the others, each for itself."""
    group_of = {number: [number] for number in range(len(jobs))}
    for routes in of_times:
        asks = {number: asked_bps(network, job, routes[number]) for number, job in enumerate(jobs)}
        for first, *others in contending_jobs(network, asks):
            for other in others:
                if group_of[first] is not group_of[other]:
                    group_of[first] += group_of[other]
                    for number in group_of[other]:
                        group_of[number] = group_of[first]
    return [sorted(group) for number, group in group_of.items() if number == min(group)]


def _joined(uses: Sequence[LinkUse]) -> LinkUse:
    """The use of a link by groups of jobs; marks, losses and queues are those of the groups that have them."""

    def known(values: Sequence[float]) -> list[float]:
        return [value for value in values if not math.isnan(value)] or [math.nan]

    return LinkUse(
        uses[0].name,
        sum(use.sent_bytes for use in uses),
        sum(known([use.marked_bytes for use in uses])),
        sum(known([use.dropped_bytes for use in uses])),
        max(known([use.largest_queue_bytes for use in uses])),
    )


# -- checks -------------------------------------------------------------------------------------


def check(network: Network, jobs: Sequence[NetworkJob], routes: Routes) -> None:
    """Check that jobs and routes fit the network, whatever the mode.

    Raises:
        UsageError: they do not; the message names the job and the field.
    """
    if not jobs:
        raise UsageError("jobs: expected at least one, got none")
    if len({job.name for job in jobs}) != len(jobs):
        raise UsageError("jobs: expected different names, got one twice")
    if len(routes) != len(jobs):
        raise UsageError(f"routes: expected those of {len(jobs)} jobs, got {len(routes)}")
    for job, ways in zip(jobs, routes, strict=True):
        _check_job(network, job)
        _check_ways(network, job, ways)


def _check_job(network: Network, job: NetworkJob) -> None:
    where, traffic, last = f"job {job.name}", job.traffic, len(network.hosts) - 1
    if len(job.hosts) != traffic.workers:
        raise UsageError(
            f"{where}: hosts: expected one for each of {traffic.workers} workers, got {len(job.hosts)}"
        )
    if len(job.worker_laws) not in (0, traffic.workers):
        raise UsageError(
            f"{where}: worker_laws: expected none, or {traffic.workers}, got {len(job.worker_laws)}"
        )
    if any(not 0 <= host <= last for host in job.hosts):
        raise UsageError(f"{where}: hosts: expected 0 to {last}, got {job.hosts}")
    if job.iterations < 1 or not traffic.steps:
        raise UsageError(
            f"{where}: expected at least 1 iteration of 1 step, got {job.iterations} of {len(traffic.steps)}"
        )
    if any(before >= number for number, step in enumerate(traffic.steps) for before in step.after):
        raise UsageError(f"{where}: after: expected earlier steps, got a later one or the step itself")
    times_ns = (job.start_ns, job.noise_ns, *(step.compute_ns for step in traffic.steps))
    if not all(0 <= time_ns <= _LONGEST_NS for time_ns in times_ns):
        raise UsageError(
            f"{where}: start_ns, noise_ns and compute_ns of steps: expected 0 to {_LONGEST_NS}, got {times_ns}"
        )
    if not all(0 <= message.size_bytes < math.inf for message in traffic.messages):
        raise UsageError(f"{where}: size_bytes of messages: expected 0 or more, and finite")


def _check_ways(network: Network, job: NetworkJob, ways: Sequence[Sequence[int]]) -> None:
    messages = job.traffic.messages
    if len(ways) != len(messages):
        raise UsageError(f"job {job.name}: routes: expected {len(messages)}, got {len(ways)}")
    known: set[tuple[int, int, tuple[int, ...]]] = set()
    for message, way in zip(messages, ways, strict=True):
        key = (message.source, message.target, tuple(way))
        if key not in known:
            ends = [network.hosts[job.hosts[worker]] for worker in key[:2]]
            _check_way(network, f"job {job.name}: route", ends, way)
            known.add(key)


def _check_way(network: Network, where: str, ends: Sequence[str], way: Sequence[int]) -> None:
    place = ends[0]
    if len(set(way)) != len(way):
        raise UsageError(f"{where}: expected each link once, got {list(way)}")
    for number in way:
        if not 0 <= number < len(network.links) or network.links[number].source != place:
            raise UsageError(f"{where}: expected a link that begins at {place}, got {shown(number)}")
        place = network.links[number].target
    if place != ends[1]:
        raise UsageError(f"{where}: expected one that ends at {ends[1]}, got {place}")
