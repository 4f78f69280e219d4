"""Deciders: a scheduler in the service, or a policy in a process of its own with a rule behind it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mltcp.core.one_line import one_line
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView, Scheduler
from placement.service.deciding.assignment_check import check_assignment
from placement.service.deciding.decide_once import decide_once
from placement.service.deciding.failure import FailureReason, PolicyFailure
from placement.service.deciding.policy_process import PolicyProcess
from placement.service.deciding.policy_worker import DecisionRequest

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class Decided:
    """A decision that can be carried out.

    Attributes:
        assignment: the GPUs of each job that runs.
        by: the name of the scheduler that made it.
        took_ns: the time that it took.
        instead: why the fallback decided instead of the policy; empty if it did not.
    """

    assignment: Mapping[str, tuple[int, ...]]
    by: str
    took_ns: int
    instead: str = ""


class Decider(Protocol):
    """Makes decisions that can be carried out."""

    @property
    def name(self) -> str:
        """The name of the policy."""
        ...

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that decides in this process: alone, or where the policy fails."""
        ...

    async def start(self, warm_up: DecisionRequest) -> None:
        """Get ready, deciding about `warm_up` without effect, if there are jobs in it."""
        ...

    async def decide(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> Decided:
        """A decision. Raises MltcpError: none was made that can be carried out."""
        ...

    async def close(self) -> None:
        """End its processes."""
        ...


class DirectDecider:
    """A scheduler that decides in the service.

    Args:
        scheduler: decides.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    @property
    def name(self) -> str:
        """See `Decider`."""
        return self.scheduler.name

    async def start(self, warm_up: DecisionRequest) -> None:
        """See `Decider`. Raises UsageError: the scheduler cannot decide about such jobs on such a cluster."""
        if warm_up.jobs:
            decide_once(self.scheduler, warm_up.cluster, warm_up.now_ns, warm_up.jobs)

    async def decide(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> Decided:
        """See `Decider`."""
        began_ns = time.perf_counter_ns()
        assignment = decide_once(self.scheduler, cluster, now_ns, jobs)
        check_assignment(cluster, jobs, assignment)
        return Decided(assignment, self.name, time.perf_counter_ns() - began_ns)

    async def close(self) -> None:
        """See `Decider`: it has none."""


class GuardedDecider:
    """A policy with a time limit, and a rule that decides where it fails.

    Attributes:
        failures: how often the rule decided, by reason.
        last_failure: the last reason, for people.

    Args:
        policy: decides, in a process of its own.
        fallback: decides where the policy fails.
        limit_s: the time that the policy has for a decision.
    """

    def __init__(self, policy: PolicyProcess, fallback: Scheduler, limit_s: float) -> None:
        self.scheduler = fallback
        self.failures: Counter[FailureReason] = Counter()
        self.last_failure = ""
        self._policy, self._limit_s = policy, limit_s

    @property
    def name(self) -> str:
        """See `Decider`."""
        return self._policy.name

    async def start(self, warm_up: DecisionRequest) -> None:
        """See `Decider`; a policy that cannot be loaded is said, and the rule decides."""
        if warm_up.jobs:
            decide_once(self.scheduler, warm_up.cluster, warm_up.now_ns, warm_up.jobs)
        try:
            await self._policy.start(warm_up)
        except PolicyFailure as failure:
            _log.error("%s: %s decides: %s", self.name, self.scheduler.name, one_line(str(failure)))
            self.last_failure = str(failure)

    async def decide(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> Decided:
        """See `Decider`."""
        began_ns = time.perf_counter_ns()
        by, instead = self.name, ""
        try:
            answer = await self._policy.ask(DecisionRequest(cluster, now_ns, tuple(jobs)), self._limit_s)
            check_assignment(cluster, jobs, answer.assignment)
            assignment = answer.assignment
        except PolicyFailure as failure:
            self.failures[failure.reason] += 1
            self.last_failure = instead = str(failure)
            _log.warning("%s decides: %s: %s", self.scheduler.name, failure.reason.value, one_line(instead))
            by = self.scheduler.name
            assignment = decide_once(self.scheduler, cluster, now_ns, jobs)
            check_assignment(cluster, jobs, assignment)
        return Decided(assignment, by, time.perf_counter_ns() - began_ns, instead)

    async def close(self) -> None:
        """See `Decider`."""
        await self._policy.close()
