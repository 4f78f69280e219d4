"""A candidate policy on trial beside the live one: recorded, weighed, promoted by evidence, and rolled back.

Each time the simulator lets either policy decide from the present state on until the present jobs have ended
(`placement.simulator.rates.present_jobs`), at the speeds that the service has measured: a difference between the two on
the same state. After a promotion the former policy is the shadow: the evidence goes on the other way round, on the
states that the new policy visits, and brings the former one back when it is better.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from mltcp.core.one_line import one_line
from placement.model.cluster import Cluster
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView, Scheduler
from placement.service.context import ServiceContext
from placement.service.decision_records import PROMOTED, ROLLED_BACK, PolicyChange, Weighed
from placement.service.decisions.decider import (
    Decided,
    Decider,
    ShadowPolicy,
    in_rounds,
    in_thread,
    places_of,
    servers_text,
)
from placement.service.decisions.policy_process import DecisionRequest, PolicyFailure, PolicyProcess
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError
from placement.simulator.rates.present_jobs import ends_after

MOST_WEIGHED_JOBS = 64
"""Decisions about more jobs are not weighed: that would take the time of others."""

_WEIGH_S = 60.0
ALLOW = "allow"

_log = logging.getLogger("mltcp.placement")

_Assignment = Mapping[str, tuple[int, ...]]


@lru_cache(maxsize=4)
def _scheduler(name: str, round_ns: int) -> Scheduler:
    return in_rounds(named_scheduler(name), round_ns) if round_ns else named_scheduler(name)


class PolicyTrial:
    """The live policy of a service and, if it has one, the shadow, which may change places.

    Attributes:
        decider: decides.
        shadow: is asked about every decision, without effect; None: there is none.

    Args:
        context: the service's state.
        decider: of the policy of the service's rules.
        candidate: the process of the shadow of the rules; None: there is none.
        former: the process in which the policy of the rules is asked where it is the shadow, unless it has one.
    """

    def __init__(
        self,
        context: ServiceContext,
        decider: Decider,
        candidate: PolicyProcess | None,
        former: PolicyProcess | None,
    ) -> None:
        self._context, self._records = context, context.records
        self._rules, self._candidate = decider, candidate
        self._former = decider.policy or former
        self._round_ns = round(context.rules.round_s * 1e9)
        self._last: tuple[int, int, dict[str, JobView], _Assignment, Cluster] | None = None
        self._is_stuck = False
        switch = self._records.switch
        self._promoted = switch is not None and switch.event == PROMOTED
        self._take_places()

    @property
    def _names(self) -> tuple[str, str]:
        """The live policy and the shadow, as the rules of the service name them."""
        rules = self._context.rules
        return (rules.shadow, rules.policy) if self._promoted else (rules.policy, rules.shadow)

    def _take_places(self) -> None:
        limit_s = self._context.rules.decision_limit_s
        self.decider, process = self._rules, self._candidate
        if self._promoted:
            assert self._candidate is not None, "only a candidate is promoted"
            self.decider, process = Decider(self._rules.scheduler, self._candidate, limit_s), self._former
        self.shadow = None if process is None else ShadowPolicy(process, limit_s, self._weigh)

    async def start(self, warm_up: DecisionRequest) -> None:
        """Load the policies that decide in processes of their own."""
        await self.decider.start(warm_up)
        if self.shadow is not None:
            await self.shadow.start(warm_up)

    async def close(self) -> None:
        """End their processes."""
        if self.shadow is not None:
            await self.shadow.close()
        for process in (self._rules.policy, self._candidate, self._former):
            if process is not None:
                await process.close()

    def decided(
        self, cluster: Cluster, now_ns: int, views: Sequence[JobView], decided: Decided, cause: str
    ) -> None:
        """Record a decision and what came of the one before, and ask the shadow."""
        self._note_outcome(now_ns, views)
        places = places_of(cluster, decided.assignment)
        held = places_of(cluster, {view.name: view.gpus for view in views})
        seen = (
            {
                "job": view.name,
                "left": float(view.iterations_left),
                "held": servers_text(held.get(view.name)),
                "given": servers_text(places.get(view.name)),
            }
            for view in views
        )
        live, shadow = self._names
        number = self._records.decided(now_ns, live, shadow, seen, cause)
        self._last = number, now_ns, {view.name: view for view in views}, decided.assignment, cluster
        if self.shadow is not None:
            self.shadow.watch(number, cluster, now_ns, views, decided.assignment)

    def note(self, job_id: str) -> str:
        """What the shadow would have done with a job, and the evidence about it."""
        found = "" if self.shadow is None else self.shadow.notes.get(job_id, "")
        return found and f"{found}; {self.evidence_text}"

    @property
    def evidence_text(self) -> str:
        """What is known of the shadow, for people."""
        ready = self._records.evidence.favours_candidate and not self._promoted
        hint = "; mltcp-placement promote makes it the policy" if ready else ""
        return f"under {self.shadow.name if self.shadow else ''} {self._records.evidence}{hint}"

    def fill(self, message: pb.DecisionStatus) -> None:
        """Add the evidence to a status message."""
        evidence, switch = self._records.evidence, self._records.switch
        message.live = self._names[0]
        if switch is not None:
            message.switched = f"{switch.event}: {switch.policy}: {switch.why}"
        if self.shadow is not None:
            message.shadow.evidence = self.evidence_text
            message.shadow.weighed, message.shadow.blocks = evidence.decisions, evidence.blocks
            message.shadow.difference, message.shadow.half = evidence.mean, evidence.half

    def change(self, back: bool) -> None:
        """Promote the shadow, or make the policy of the rules live again, as an operator asks.

        Raises:
            RequestError: there is no shadow, or it is so already.
        """
        if self.shadow is None or self._promoted is not back:
            live = "the policy of --policy" if back else "a shadow that is not live yet (serve --shadow)"
            state = self.decider.name + (" without a shadow" if self.shadow is None else "")
            raise RequestError(
                ErrorCode.STATE, "back", f"expected {'a promoted policy' if back else live}, got {state}"
            )
        self._switch("an operator asked for it")

    def _switch(self, why: str) -> None:
        assert self.shadow is not None, "only with a shadow"
        event = ROLLED_BACK if self._promoted else PROMOTED
        why = f"{why}; {self._records.evidence}"
        self._promoted = not self._promoted
        self._take_places()
        live, shadow = self._names
        self._records.switched(self._context.clock.now_ns(), PolicyChange(event, live, shadow, why))
        self._context.counts.switches[event] += 1
        _log.warning("%s is %s: %s", live, event, one_line(why))
        if self._former is not None and not self._former.is_started:
            self._context.begin(self._start_former())

    async def _start_former(self) -> None:
        assert self._former is not None, "there is one with a candidate"
        try:
            await self._former.start(DecisionRequest(Cluster.star(1, 1), 0, ()))
        except PolicyFailure as failure:
            _log.error("shadow %s: %s", self._former.name, one_line(str(failure)))

    async def _weigh(
        self, number: int, request: DecisionRequest, did: _Assignment, would: _Assignment
    ) -> None:
        """Add what the shadow would have done to the record of a decision, and act on what is known then."""
        shadow = self.shadow
        other = places_of(request.cluster, would)
        weighed = await self._within_limit(request, did, would)
        if shadow is not self.shadow:
            return  # places were changed meanwhile
        texts = {job: servers_text(servers) for job, servers in other.items()}
        self._records.would(number, texts, weighed)
        if not self._records.evidence.favours_candidate:
            return
        if self._promoted or (self._context.rules.promote == ALLOW and self._records.switch is None):
            self._switch("by evidence")

    async def _within_limit(
        self, request: DecisionRequest, did: _Assignment, would: _Assignment
    ) -> Weighed | None:
        """The difference of two decisions; None if that takes too long, and from then on."""
        if self._is_stuck:
            return None
        try:
            async with asyncio.timeout(_WEIGH_S):
                return await in_thread(lambda: self._difference(request, did, would))
        except TimeoutError:
            self._is_stuck = True
            _log.error("decisions are not weighed any more: one took more than %g s", _WEIGH_S)
            return None

    def _difference(self, request: DecisionRequest, did: _Assignment, would: _Assignment) -> Weighed | None:
        jobs = request.jobs
        if len(jobs) > MOST_WEIGHED_JOBS:
            return None
        world = request.cluster, request.now_ns, jobs
        try:
            live, other = (
                ends_after(*world, first, _scheduler(name, self._round_ns), self._round_ns)
                for first, name in zip((did, would), self._names, strict=True)
            )
        except Exception as error:  # a scheduler of one's own may raise anything
            _log.info("a decision was not weighed: %s: %s", type(error).__name__, one_line(str(error)))
            return None
        due = {job.name: job.deadline_ns - request.now_ns for job in jobs if job.deadline_ns is not None}
        late = sum((other[job] > due_ns) - (live[job] > due_ns) for job, due_ns in due.items())
        return Weighed(statistics.fmean(other.values()) / statistics.fmean(live.values()) - 1, late)

    def _note_outcome(self, now_ns: int, views: Sequence[JobView]) -> None:
        """Record how far the jobs of the decision before have come since, beside what was expected."""
        if self._last is None:
            return
        number, then_ns, before, assignment, cluster = self._last
        now = {view.name: view for view in views}
        expected = advanced = Fraction(0)
        for name, gpus in assignment.items():
            view, after = before[name], now.get(name)
            if not gpus or after is None:
                continue  # when it ended is not known here
            one_node = len(cluster.by_node(gpus)) == 1
            took_ns = Fraction(view.times.iteration_ns(len(gpus), one_node)) * view.gpus_wanted / len(gpus)
            hold_ns = view.restart_left_ns if gpus == view.gpus else view.restart_cost_ns
            running_ns = max(0, now_ns - then_ns - hold_ns)
            expected += min(Fraction(running_ns), Fraction(view.iterations_left) * took_ns)
            advanced += (
                max(Fraction(0), Fraction(view.iterations_left) - Fraction(after.iterations_left)) * took_ns
            )
        self._records.came(number, float(expected / 10**9), float(advanced / 10**9))
