"""The shared context of the service's parts: registry, store, clock and rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from placement.cassini.drift import THRESHOLD
from placement.model.throughput_table import Combination
from placement.service.contention import ContentionState
from placement.service.counts import ServiceCounts
from placement.service.decision_records import DecisionRecords
from placement.service.job_classes import ClassRules, class_note
from placement.service.measured_speeds import MeasuredSpeeds
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError
from placement.service.protocol.pages import shorten_explanation, shorten_status
from placement.service.restart_costs import RestartCosts
from placement.service.state.job_record import JobRecord, done_iterations
from placement.service.state.persistence import forget_job, save_decision, save_next_job
from placement.service.state.registry import Registry
from placement.service.state.store import Store


class Clock:
    """A monotonic clock in nanoseconds since the epoch.

    It is set from the host's clock when it is created, and later changes of the host's clock do not affect it.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """The present time."""
        return time.monotonic_ns() + self._offset_ns


GRACE_S = 30.0
RESTART_COST_S = 7.0
"""About what ``mltcp-bench cost restart`` measures for a few ranks; see docs/elastic.md."""

PATIENCE_S = 3600.0
DECISION_LIMIT_S = 1.0
KEEP_ENDED_S = 30 * 86_400.0
KEEP_ENDED = 100_000
MOST_JOBS = 100_000
JOBS_OF_USER = 10_000


@dataclass(frozen=True)
class ServiceRules:
    """Parameters of the service's decisions.

    Attributes:
        policy: the policy of jobs that request none.
        lease_s: how long a job keeps its slots and time shift after its agent's stream has ended.
        drift_threshold: drift, as a fraction of the job's period, above which jobs are delayed.
        grace_s: how long a job that is stopped may take to end by itself, before it is killed.
        restart_cost_s: what schedulers of whole jobs take a restart to cost until one has been seen.
        keep_ended_s, keep_ended: how long jobs that are over are kept, and how many of them.
        jobs_of_user, most_jobs: how many jobs of a user, and in all, that are not over are accepted.
        patience_s: when a job has waited for longer than this, no job without a deadline is placed before it.
        table: the name of the table of contention ratios; empty: jobs have no models.
        combination: of the ratios of that table beside several neighbours.
        round_s: a scheduler of whole jobs decides at multiples of this time; 0: when something happens.
        fallback: the rule that decides where the policy fails; empty: none.
        decision_limit_s: the time that the policy has for a decision, if there is such a rule, and a shadow.
        shadow: the policy that is asked about every decision without effect; empty: none.
        classes: traffic classes of the jobs that the engine starts; None: they get none.
        promote: allow: it becomes the policy when evidence favours it; else an operator makes it so.
    """

    policy: str = "lwf-1"
    lease_s: float = 30.0
    drift_threshold: float = THRESHOLD
    grace_s: float = GRACE_S
    restart_cost_s: float = RESTART_COST_S
    patience_s: float = PATIENCE_S
    keep_ended_s: float = KEEP_ENDED_S
    keep_ended: int = KEEP_ENDED
    jobs_of_user: int = JOBS_OF_USER
    most_jobs: int = MOST_JOBS
    table: str = ""
    combination: Combination = "minimum"
    round_s: float = 0.0
    fallback: str = ""
    decision_limit_s: float = DECISION_LIMIT_S
    shadow: str = ""
    classes: ClassRules | None = None
    promote: str = ""


@dataclass(frozen=True)
class ServiceContext:
    """The state that the service's parts share.

    Attributes:
        registry: the state in memory.
        store: the durable copy of the registry.
        clock: the service's clock.
        rules: parameters of its decisions.
        decisions: explanations of placements, by job number.
        seen: what a workload manager says of the jobs that it runs, by id.
        unheard: jobs that go on though their agents are gone, by id, with what is known of that.
        epoch: how many services have used the store before.
        tasks: that are in progress.
        contention: of jobs that name their models; None: the service has no table.
        counts: for metrics.
        speeds: of the jobs that were submitted with one.
        records: of decisions about all jobs.
    """

    registry: Registry
    store: Store
    clock: Clock
    rules: ServiceRules
    decisions: dict[int, pb.ExplainReply] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    contention: ContentionState | None = None
    unheard: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    counts: ServiceCounts = field(default_factory=ServiceCounts)
    speeds: MeasuredSpeeds = field(default_factory=MeasuredSpeeds)
    records: DecisionRecords = field(default_factory=lambda: DecisionRecords(lambda statement, values: None))

    @cached_property
    def restarts(self) -> RestartCosts:
        """What stops and starts of jobs have cost."""
        return RestartCosts(round(self.rules.restart_cost_s * 1e9))

    def check_accepts(self, field: str) -> None:
        """Raise `RequestError` if nothing new is accepted, because the store cannot keep it."""
        if refusal := self.store.refusal():
            raise RequestError(ErrorCode.FULL, field, refusal)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Start a task, which ends with the service."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def done(self, job: JobRecord) -> Fraction:
        """The iterations that a job has done by now, counted in those with as many slots as it asked for."""
        now_ns = self.clock.now_ns()
        if self.contention is not None and job.spec.model:
            return self.contention.done(self.registry, job, now_ns)
        if job.speed is not None:
            begun_ns = job.placed_ns + self.restarts.start_ns(job.id)
            return self.speeds.done(job, self.on_one_server(job), begun_ns, now_ns)
        return Fraction(done_iterations(job, now_ns))

    def on_one_server(self, job: JobRecord) -> bool:
        """Whether the slots of a job are on one server, if it has any."""
        return len(self.registry.pool(job).by_server(job.slots)) <= 1

    def placements_changed(self) -> None:
        """Measure anew, since jobs were given slots or have given theirs back, or a round has begun."""
        if self.contention is not None:
            self.contention.update(self.registry)

    def job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        """See `lifecycle.JobListener`."""
        self.restarts.changed(job, self.clock.now_ns())
        if job.over or (before is not None and before.placed != job.placed):
            self.placements_changed()
        if job.over:
            self.speeds.forget(job.id)
            self.restarts.forget(job.id)

    def remember(self, job: JobRecord, decision: pb.ExplainReply) -> None:
        """Keep and store the explanation of a job's placement."""
        shorten_explanation(decision)
        self.decisions[job.number] = decision
        save_decision(self.store, job, decision)

    def forget(self) -> list[JobRecord]:
        """Forget jobs that have been over for long, or are too many; returns them."""
        before_ns = self.clock.now_ns() - round(self.rules.keep_ended_s * 1e9)
        forgotten = self.registry.forget(self.rules.keep_ended, before_ns)
        for job in forgotten:
            self._forgotten(job)
        if forgotten:
            save_next_job(self.store, self.registry.next_job_number)
        return forgotten

    def forget_job(self, job: JobRecord) -> None:
        """Forget a job that is over, so that another one may have its id."""
        del self.registry.jobs[job.id]
        self._forgotten(job)
        save_next_job(self.store, self.registry.next_job_number)

    def _forgotten(self, job: JobRecord) -> None:
        self.decisions.pop(job.number, None)
        forget_job(self.store, job)

    def notes(self, job: JobRecord) -> str:
        """What is seen of a job that holds slots, in a line; empty: nothing to tell."""
        if not job.placed:
            return ""
        speed = self.speeds.note(job, self.on_one_server(job)) if job.speed is not None else ""
        classed = ""
        if self.rules.classes is not None:
            classed = class_note(self.registry, job, self.rules.classes, self.done)
        found = (self.seen.get(job.id, ""), self.unheard.get(job.id, ""), speed, classed)
        return "; ".join(text for text in found if text)

    def status(self, job_id: str, attached: bool = False, slowed_by: str = "") -> pb.JobStatus:
        """The status message of a job, with what is seen of it; not to be changed."""
        job = self.registry.jobs[job_id]
        if job.over:  # of which very many are remembered, and few are asked for again
            return job.described()
        if not (job.placed or attached):  # as are most of very many jobs, in every status of the service
            return job.message
        message = pb.JobStatus()
        message.CopyFrom(job.message)
        message.places.extend(self.registry.places(job))
        message.attached = attached
        message.seen = "; ".join(text for text in (self.notes(job), slowed_by) if text)
        shorten_status(message)
        return message
