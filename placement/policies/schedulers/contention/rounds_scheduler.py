"""The rules in rounds as schedulers: for every executor, and for a live cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.contention.decide import decide
from placement.policies.schedulers.contention.new_world import trial_of
from placement.policies.schedulers.contention.observation import assignment_of, observe
from placement.policies.schedulers.contention.rounds import STOP_RATIO, exempt_rounds
from placement.policies.schedulers.contention.rule import Rule, find_rule
from placement.policies.schedulers.contention.world import GREEDY, NO_STOPS, ORDERED, STOPS_BY_RATIO
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView

ROUND_NS = 300 * 10**9
"""The paper's round of 300 s."""


@dataclass(frozen=True)
class RoundsScheduler:
    """A rule that decides at the beginning of every round; a job gets as many GPUs as it asks for.

    Each decision is a function of what the scheduler is shown, and of nothing else.

    Attributes:
        name: on the command line.
        rule: what it stands for.
        round_ns: the length of a round.
    """

    name: str
    rule: Rule
    round_ns: int = ROUND_NS

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The beginning of the next round; None for rules that change nothing unless a job has arrived or ended."""
        if self.rule.stops == NO_STOPS and self.rule.family in (ORDERED, GREEDY):
            return None
        return (now_ns // self.round_ns + 1) * self.round_ns

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """The running jobs that contention has slowed down too much, in the order in which they were started."""
        return contended(now_ns, jobs, self.round_ns) if self.rule.stops == STOPS_BY_RATIO else ()

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`: one.

        Raises:
            UsageError: a job fits on no number of nodes, or the cluster is too large for the rule.
        """
        if not jobs:
            return ({},)
        world = observe(cluster, now_ns, jobs, self.rule, self.round_ns)
        decide(world, trial_of(world))
        return (assignment_of(world, cluster, jobs),)


def contended(now_ns: int, jobs: Sequence[JobView], round_ns: int) -> tuple[str, ...]:
    """The running jobs that the stop rule stops, in the order in which they were started."""
    round_s = round_ns / 1e9
    found = [
        (job.started_ns, position, job.name)
        for position, job in enumerate(jobs)
        if job.gpus
        and job.ratio <= STOP_RATIO
        and now_ns - job.started_ns > exempt_rounds(job.restart_ns / 1e9, round_s) * round_ns
    ]
    return tuple(name for _, _, name in sorted(found))


def rounds_scheduler(name: str, seed: int = 0) -> RoundsScheduler | None:
    """The scheduler of this name; None if no rule in rounds has it."""
    rule = find_rule(name, seed)
    return None if rule is None else RoundsScheduler(name, rule)
