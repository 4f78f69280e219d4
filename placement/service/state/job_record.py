"""A job as the service knows it."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.demand import Demand
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.slot_pool import SlotRequest

UNPROFILED_NS = 1_000_000_000
"""What an iteration of a job without a profile is taken to last when jobs and GPUs are ranked by work."""


@dataclass(frozen=True)
class JobRecord:
    """A job with what became of it.

    Attributes:
        number: in the order in which the jobs became known.
        spec: as the client gave it.
        demand: its present profile, which may be another than the spec's.
        state: of `pb.JobState`.
        policy: that placed it; before that, the one asked for, or none.
        reason: why it failed or ended.
        submitted_ns: since the epoch, as the next two; 0 while it has not happened.
        placed_ns: when it got its slots.
        ended_ns: when it gave them back.
        slots: their numbers in the pool.
        links: that its traffic uses.
        shift_ns: its time shift; None without one.
        turn: which jobs it is shifted against: those with the same; empty without a time shift.
        agent: whether an agent of it is, or was, attached, so that the lease applies.
        engine: what the engine finds it by; empty if none runs it.
        done: iterations that are known to be over.
    """

    number: int
    spec: pb.Job
    demand: Demand | None
    state: int
    policy: str = ""
    reason: str = ""
    submitted_ns: int = 0
    placed_ns: int = 0
    ended_ns: int = 0
    slots: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    shift_ns: int | None = None
    turn: str = ""
    agent: bool = False
    engine: str = ""
    done: int = 0

    @property
    def id(self) -> str:
        """As the client chose it."""
        return self.spec.id

    @property
    def placed(self) -> bool:
        """Whether it has slots now."""
        return self.state == pb.PLACED

    @property
    def over(self) -> bool:
        """Whether nothing will become of it any more."""
        return self.state in (pb.ENDED, pb.FAILED)

    @property
    def count(self) -> int:
        """How many slots it wants."""
        return self.spec.gpus or self.spec.cpu_slots

    @property
    def iteration_ns(self) -> int:
        """By its profile."""
        return self.demand.iteration_ns if self.demand else UNPROFILED_NS

    @property
    def work_ns(self) -> int:
        """What is left to do on each of its slots."""
        return min(self.iteration_ns * max(0, self.spec.iterations - self.done), 1 << 56)

    @property
    def service_ns(self) -> int:
        """What it takes of all slots, as a whole: jobs that wait are ranked by that (SRSF)."""
        return self.iteration_ns * self.spec.iterations * self.count


@dataclass(frozen=True)
class ResourceClass:
    """What decides whether a job fits: if one does not, no other of the same class does."""

    gpus: bool
    request: SlotRequest


def status_message(job: JobRecord, places: list[pb.ServerSlots], attached: bool) -> pb.JobStatus:
    """What the service says of a job."""
    return pb.JobStatus(
        id=job.id,
        state=pb.JobState.Name(job.state),
        places=places,
        links=job.links,
        shift_ns=job.shift_ns,
        policy=job.policy,
        reason=job.reason,
        submitted_ns=job.submitted_ns,
        placed_ns=job.placed_ns,
        ended_ns=job.ended_ns,
        attached=attached,
        job=job.spec,
    )
