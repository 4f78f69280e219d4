"""The fluid model once more, in exact fractions and without any haste."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.demand import Phase


@dataclass
class Job:
    """As it is at one moment; times in ns, bits in units of 1 ns at 1 bit/s."""

    phases: tuple[Phase, ...]
    links: tuple[int, ...]
    iterations: int
    hold: Fraction
    phase: int = -1
    left: Fraction = Fraction(0)

    @property
    def wanted(self):
        return self.phases[self.phase].bandwidth_bps if 0 <= self.phase < len(self.phases) else 0


def simulate(jobs, capacities):
    """When each iteration of each job ends."""
    ends = [[] for _ in jobs]
    now = Fraction(0)
    for job in jobs:
        job.left = Fraction(job.hold)
    for job in jobs:
        if job.left == 0:
            _next(job)
    while any(job.iterations for job in jobs):
        rates = max_min([(job.wanted, job.links) if job.iterations else (0, ()) for job in jobs], capacities)
        due = {
            number: job.left if job.wanted == 0 else job.left / rates[number]
            for number, job in enumerate(jobs)
            if job.iterations
        }
        step = min(due.values())
        now += step
        for number, time in due.items():
            job = jobs[number]
            job.left -= step if job.wanted == 0 else step * rates[number]
            if time == step and _next(job):
                ends[number].append(now)
    return ends


def max_min(asked, capacities):
    """Progressive filling: at each step all that are not yet settled are raised to the lowest of all limits."""
    rates = [Fraction(0)] * len(asked)
    open_flows = {number for number, (wanted, _) in enumerate(asked) if wanted}
    while open_flows:
        limits = []
        for link, capacity in enumerate(capacities):
            users = [number for number in open_flows if link in asked[number][1]]
            settled = sum(
                rate
                for number, rate in enumerate(rates)
                if number not in open_flows and link in asked[number][1]
            )
            if users:
                limits.append(((capacity - settled) / Fraction(len(users)), set(users)))
        limits += [(Fraction(asked[number][0]), {number}) for number in open_flows]
        level = min(limit for limit, _ in limits)
        for limit, users in limits:
            if limit == level:
                for number in users:
                    rates[number] = level
                open_flows -= users
    return rates


def _next(job):
    """Begin the next phase; whether an iteration has ended with the last."""
    job.phase += 1
    ended = job.phase == len(job.phases)
    if ended:
        job.phase = 0
        job.iterations -= 1
    phase = job.phases[job.phase]
    job.left = Fraction(phase.duration_ns) * (phase.bandwidth_bps or 1)
    return ended
