"""What all parts of the service work on: the registry, its store, the clock and the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from placement.cassini.drift import THRESHOLD
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.clock import Clock
from placement.service.state.job_record import JobRecord, status_message
from placement.service.state.persistence import save_decision, save_job
from placement.service.state.registry import Registry
from placement.service.state.store import Store


@dataclass(frozen=True)
class ServiceRules:
    """How the service decides.

    Attributes:
        policy: of jobs that ask for none.
        lease_s: how long a job whose agent is gone keeps its slots and its time shift.
        drift_threshold: of a job's period: by so much jobs may be off before they are held back.
    """

    policy: str = "lwf-1"
    lease_s: float = 30.0
    drift_threshold: float = THRESHOLD


@dataclass(frozen=True)
class ServiceContext:
    """The state of a running service.

    Attributes:
        registry: what there is.
        store: where it is durable.
        clock: the service's.
        rules: how it decides.
        decisions: why jobs are where they are, by their numbers.
    """

    registry: Registry
    store: Store
    clock: Clock
    rules: ServiceRules
    decisions: dict[int, pb.ExplainReply] = field(default_factory=dict)

    def save(self, jobs: Iterable[JobRecord]) -> None:
        """Put what has become of jobs into the store."""
        for job in jobs:
            save_job(self.store, job, self.registry.places(job))

    def remember(self, job: JobRecord, decision: pb.ExplainReply) -> None:
        """Put why a job is where it is into the store."""
        self.decisions[job.number] = decision
        save_decision(self.store, job, decision)

    def status(self, job_id: str, attached: bool = False) -> pb.JobStatus:
        """What there is to say of a job."""
        job = self.registry.jobs[job_id]
        return status_message(job, self.registry.places(job), attached)
