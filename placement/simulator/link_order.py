"""Jobs that share one link under ideal rules: a fluid model of bursts, served at once as a rule says.

A job is a cycle of phases: it computes, and then sends. The link has rate 1, so that sizes are seconds alone on it.
Among the jobs that have something to send, the rule says who gets the link; preemption is free and at once, and there
are no windows, queues or round trips. What the rules lose is a bound for congestion controls and switches.

The optimum is searched for: at each moment at which jobs compete, all choices of the next few such moments are tried,
each continued by SRPT for a while, and the first choice of the best is taken (a receding horizon that knows the
computing times to come). Of the schedule that comes of it and those of the rules, the one with the largest mean ratio
counts. It can be had; that there is no better one is not proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number
from placement.model.compiled import compiled
from placement.model.state import Records

MOST_JOBS, MOST_PHASES = 8, 64
_DRAWN = 4096
_HAIR = 1e-12
_FINE = 0.005  # of an iteration, or a burst, that is sent at most between two computations of F
_DEPTHS = {2: 6, 3: 4}
_HORIZON = 5.0

JOB = np.dtype(
    [
        ("phases", "i8"),
        ("phase", "i8"),
        ("sending", "i8"),
        ("left", "f8"),  # s to compute, or to send alone on the link
        ("iteration_left", "f8"),  # s to send in this iteration
        ("whole", "f8"),  # s that an iteration sends
        ("burst", "f8"),  # and a burst
        ("alone", "f8"),  # s of an iteration alone
        ("key", "f8"),  # of a static rule
        ("class_", "i8"),  # of this burst
        ("began", "f8"),  # the burst
        ("speed", "f8"),
        ("done", "f8"),  # s of computing and sending so far
        ("number", "i8"),  # of phases computed
        ("iterations", "i8"),
        ("start", "f8"),
        ("ended", "f8"),  # the last iteration
    ]
)


class LinkRule(IntEnum):
    """Which of the jobs that have something to send gets the link."""

    FAIR = 0
    """All, in equal parts."""
    RATIO = 1
    """All, in proportion to F = 1.75 x + 0.25 of the part x of the iteration that is sent."""
    FIFO_BURST = 2
    """The job whose burst began first."""
    SRPT = 3
    """The job that has least left of its iteration."""
    SRPT_BURST = 4
    """The job that has least left of its burst."""
    DUTY = 5
    """The job that has least left of its iteration, over the time of an iteration alone."""
    SMALL = 6
    """The job that sends less an iteration."""
    INTENSE = 7
    """The job that computes more for each byte."""
    CLASSES = 8
    """The jobs of the highest traffic class, in equal parts; it is chosen at the beginning of a burst."""
    OPTIMUM = 9
    """The job that a search chooses, or the best of the other rules."""
    RATIO_BURST = 10
    """All, in proportion to F of the part of the burst that is sent."""

    @property
    def label(self) -> str:
        """Its name on the command line."""
        return self.name.lower()


class LinkState(NamedTuple):
    """Jobs on a link.

    Attributes:
        jobs: of JOB.
        compute, send: by job and phase, in seconds.
        drawn: by job, standard normal numbers for its phases, used in turn.
        bounds: of traffic classes, rising, in seconds.
        clock: one: the time.
    """

    jobs: Records
    compute: np.ndarray
    send: np.ndarray
    drawn: np.ndarray
    bounds: np.ndarray
    clock: np.ndarray


@dataclass(frozen=True)
class BurstPhase:
    """Computing, and then sending, each in seconds alone."""

    compute_s: float
    send_s: float


@dataclass(frozen=True)
class BurstJob:
    """A job on a link: the phases of its iteration, in order.

    Raises UsageError for values out of range, or if nothing is sent.
    """

    name: str
    phases: tuple[BurstPhase, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.phases) <= MOST_PHASES:
            raise UsageError(f"{self.name}: phases: expected 1 to {MOST_PHASES}, got {len(self.phases)}")
        for phase in self.phases:
            check_number(phase.compute_s, field=f"{self.name}: compute_s", lowest=0, highest=1e6)
            check_number(phase.send_s, field=f"{self.name}: send_s", lowest=1e-9, highest=1e6)

    @property
    def send_s(self) -> float:
        """What an iteration sends."""
        return sum(phase.send_s for phase in self.phases)

    @property
    def alone_s(self) -> float:
        """The time of an iteration alone."""
        return self.send_s + sum(phase.compute_s for phase in self.phases)


@dataclass(frozen=True)
class LinkSettings:
    """How the link is simulated.

    Attributes:
        iterations: of the longest job, for which all run.
        noise: the standard deviation of each phase's computing time, relative to it.
        class_bounds_s: of traffic classes, rising.
    """

    iterations: int = 60
    noise: float = 0.02
    class_bounds_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_number(self.iterations, field="iterations", lowest=1, highest=1e6)
        check_number(self.noise, field="noise", lowest=0, highest=1)


def throughput_ratios(
    jobs: Sequence[BurstJob],
    rule: LinkRule,
    offsets_s: Sequence[float],
    seed: int,
    settings: LinkSettings = LinkSettings(),
) -> list[float]:
    """For each job, the time of an iteration alone over the mean one beside the others; 0 if it has completed none.

    Args:
        jobs: 1 to 8; for the optimum 2 or 3.
        rule: of the link.
        offsets_s: when each begins.
        seed: of the noise, which is the same under each rule.
        settings: see there.

    Raises:
        UsageError: a number of jobs that the rule does not take.
    """
    if not 1 <= len(jobs) <= MOST_JOBS or len(offsets_s) != len(jobs):
        raise UsageError(f"jobs: expected 1 to {MOST_JOBS} with an offset each, got {len(jobs)}")
    if rule is LinkRule.OPTIMUM and len(jobs) not in _DEPTHS:
        raise UsageError(f"jobs: expected 2 or 3 for the optimum, got {len(jobs)}")
    if rule is LinkRule.OPTIMUM:
        tried = [
            throughput_ratios(jobs, each, offsets_s, seed, settings) for each in LinkRule if each is not rule
        ]
        return max([*tried, _ratios(jobs, rule, offsets_s, seed, settings)], key=sum)
    return _ratios(jobs, rule, offsets_s, seed, settings)


def _ratios(
    jobs: Sequence[BurstJob], rule: LinkRule, offsets_s: Sequence[float], seed: int, settings: LinkSettings
) -> list[float]:
    state = _state(jobs, rule, offsets_s, seed, settings)
    longest_s = max(job.alone_s for job in jobs)
    until_s = settings.iterations * longest_s + max(offsets_s)
    if rule is LinkRule.OPTIMUM:
        tried = state._replace(jobs=state.jobs.copy(), clock=state.clock.copy())
        _run_optimum(state, tried, _DEPTHS[len(jobs)], _HORIZON * longest_s, until_s)
    else:
        _run(state, int(rule), until_s)
    return [
        float(job["alone"] * job["iterations"] / (job["ended"] - job["start"])) if job["iterations"] else 0.0
        for job in state.jobs
    ]


def _state(
    jobs: Sequence[BurstJob], rule: LinkRule, offsets_s: Sequence[float], seed: int, settings: LinkSettings
) -> LinkState:
    count = len(jobs)
    records = np.zeros(count, JOB)
    compute, send = np.zeros((count, MOST_PHASES)), np.zeros((count, MOST_PHASES))
    drawn = np.empty((count, _DRAWN))
    for number, (job, offset_s) in enumerate(zip(jobs, offsets_s, strict=True)):
        drawn[number] = np.maximum(
            0.0, 1 + settings.noise * np.random.default_rng((seed, number)).standard_normal(_DRAWN)
        )
        compute[number, : len(job.phases)] = [phase.compute_s for phase in job.phases]
        send[number, : len(job.phases)] = [phase.send_s for phase in job.phases]
        record = records[number]
        record["phases"], record["whole"], record["alone"] = len(job.phases), job.send_s, job.alone_s
        record["iteration_left"], record["start"], record["ended"] = job.send_s, offset_s, offset_s
        record["left"] = offset_s + compute[number, 0] * drawn[number, 0]
        record["number"] = 1
        record["key"] = job.send_s if rule is LinkRule.SMALL else -(job.alone_s - job.send_s) / job.send_s
    bounds = np.array(settings.class_bounds_s, float)
    return LinkState(records, compute, send, drawn, bounds, np.zeros(1))


# -- compiled ----------------------------------------------------------------------------------------------------------


@compiled
def _run(state: LinkState, rule: int, until: float) -> None:
    while state.clock[0] < until:
        if rule == 0 or rule == 1 or rule == 10:
            _share(state, rule)
        elif rule == 8:
            _share_class(state)
        else:
            _serve(state, _first(state, rule))
        _advance(state, until, rule)


@compiled
def _run_optimum(state: LinkState, tried: LinkState, depth: int, horizon: float, until: float) -> None:
    while state.clock[0] < until:
        if _senders(state) > 1:
            _serve(state, _best(state, tried, depth, horizon))
        else:
            _serve(state, _first(state, 3))
        _advance(state, until, 9)


@compiled
def _best(state: LinkState, tried: LinkState, depth: int, horizon: float) -> int:
    """The job whose service now begins the best of all sequences of so many choices, continued by SRPT."""
    count = len(state.jobs)
    best, most = -1, -1.0
    for code in range(count**depth):
        value = _value(state, tried, code, depth, state.clock[0] + horizon)
        if value > most:
            best, most = code % count, value
    return best


@compiled
def _value(state: LinkState, tried: LinkState, code: int, depth: int, until: float) -> float:
    """What the jobs have done by a time under these choices, each in its iterations; -1 if one cannot be made."""
    count = len(state.jobs)
    for number in range(count):
        tried.jobs[number] = state.jobs[number]
    tried.clock[0] = state.clock[0]
    while tried.clock[0] < until:
        chosen = _first(tried, 3)
        if depth > 0 and _senders(tried) > 1:
            chosen = code % count
            code //= count
            depth -= 1
            if tried.jobs[chosen].sending == 0:
                return -1.0
        _serve(tried, chosen)
        _advance(tried, until, 9)
    value = 0.0
    for number in range(count):
        value += (tried.jobs[number].done - state.jobs[number].done) / tried.jobs[number].alone
    return value


@compiled
def _senders(state: LinkState) -> int:
    count = 0
    for number in range(len(state.jobs)):
        count += state.jobs[number].sending
    return count


@compiled
def _first(state: LinkState, rule: int) -> int:
    """The job that goes first by an order; -1 if none has anything to send."""
    first, least = -1, np.inf
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        if job.sending == 0:
            continue
        key = job.key
        if rule == 2:
            key = job.began
        elif rule == 3:
            key = job.iteration_left
        elif rule == 4:
            key = job.left
        elif rule == 5:
            key = job.iteration_left / job.alone
        if key < least:
            first, least = number, key
    return first


@compiled
def _serve(state: LinkState, chosen: int) -> None:
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        job.speed = 1.0 if job.sending == 0 or number == chosen else 0.0


@compiled
def _share(state: LinkState, rule: int) -> None:
    """Equal parts (rule 0), or in proportion to F."""
    total = 0.0
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        job.speed = 1.0
        if job.sending:
            if rule == 1:
                job.speed = 2.0 - 1.75 * job.iteration_left / job.whole
            elif rule == 10:
                job.speed = 2.0 - 1.75 * job.left / job.burst
            total += job.speed
    for number in range(len(state.jobs)):
        if state.jobs[number].sending:
            state.jobs[number].speed /= total


@compiled
def _share_class(state: LinkState) -> None:
    first, count = -1, 0
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        if job.sending and (first < 0 or job.class_ < first):
            first, count = job.class_, 0
        if job.sending and job.class_ == first:
            count += 1
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        job.speed = 1.0
        if job.sending:
            job.speed = 1.0 / count if job.class_ == first else 0.0


@compiled
def _advance(state: LinkState, until: float, rule: int) -> None:
    """Go to the next beginning or end of a burst, or a little step where shares follow what is sent."""
    step = until - state.clock[0]
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        if job.speed > 0.0:
            step = min(step, job.left / job.speed)
            if (rule == 1 or rule == 10) and job.sending and job.speed < 1.0:
                step = min(step, _FINE * (job.whole if rule == 1 else job.burst) / job.speed)
    state.clock[0] += step
    for number in range(len(state.jobs)):
        job = state.jobs[number]
        job.left -= step * job.speed
        job.done += step * job.speed
        if job.sending:
            job.iteration_left -= step * job.speed
        if job.left <= _HAIR:
            _next_phase(state, number)


@compiled
def _next_phase(state: LinkState, number: int) -> None:
    job, now = state.jobs[number], state.clock[0]
    if job.sending == 0:
        job.sending, job.left, job.began = 1, state.send[number, job.phase], now
        job.burst = job.left
        job.class_ = 0
        for place in range(len(state.bounds)):
            if job.iteration_left >= state.bounds[place]:
                job.class_ += 1
        return
    job.phase += 1
    if job.phase == job.phases:
        job.phase = 0
        job.iterations += 1
        job.iteration_left, job.ended = job.whole, now
    job.sending = 0
    job.left = state.compute[number, job.phase] * state.drawn[number, job.number % state.drawn.shape[1]]
    job.number += 1
