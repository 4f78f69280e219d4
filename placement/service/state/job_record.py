"""The service's record of a job, and how far the job is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property

from mltcp.core.demand import Demand
from placement.model.job_speed import JobSpeed
from placement.policies.slot_pool import SlotRequest
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError
from placement.service.protocol.pages import shorten_status

UNPROFILED_NS = 1_000_000_000
"""The assumed iteration time of a job without a profile, used to rank jobs and GPUs by work."""


@dataclass(frozen=True)
class JobRecord:
    """The specification and the state of one job.

    Attributes:
        number: its position in the order of registration.
        spec: the job as the client registered it.
        demand: its present profile, which may have replaced the one in `spec`.
        state: a `pb.JobState`.
        policy: the policy that placed it; before placement, the requested one, or empty.
        reason: why it failed or ended.
        submitted_ns: time of registration since the epoch.
        placed_ns: time of placement since the epoch; 0: not placed yet.
        ended_ns: time of its end since the epoch; 0: not ended yet.
        slots: numbers of its slots in the pool.
        links: names of the links that its traffic uses.
        shift_ns: its time shift; None: none.
        turn: names the group of jobs that are shifted against each other; empty without a time shift.
        agent: whether an agent has attached, so that the lease applies.
        engine: the engine's reference to the started job; empty if no engine runs it.
        done: number of iterations known to be finished; those with as many slots as it asked for.
        restarts: how often it has been stopped and queued again.
        deadline_ns: when it is to have ended, since the epoch; None: it has no deadline.
        owner: name of the caller who registered it; empty: nobody in particular, so that only operators may change it.
        speed: its present model, corrected by measurements; None: its iterations take as long on any number of slots.
        traffic_class: that its processes were told at their launch; None: none.
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
    restarts: int = 0
    deadline_ns: int | None = None
    owner: str = ""
    speed: JobSpeed | None = None
    traffic_class: int | None = None

    @property
    def id(self) -> str:
        """The id that the client chose."""
        return self.spec.id

    @property
    def state_name(self) -> str:
        """The name of its state, such as ``PLACED``."""
        return pb.JobState.Name(self.state)

    @cached_property
    def message(self) -> pb.JobStatus:
        """What `described` gives; not to be changed.

        It is kept: those who ask for the status of all jobs ask often, and few jobs have changed.
        """
        return self.described()

    def described(self) -> pb.JobStatus:
        """Its status but for what is seen of it, without values of environment variables, which may be secret."""
        message = pb.JobStatus(
            **{name: getattr(self, name) for name in _SHOWN}, state=self.state_name, job=self.spec
        )
        for name in self.spec.environment:
            message.job.environment[name] = ""
        shorten_status(message)
        return message

    @property
    def placed(self) -> bool:
        """Whether it holds slots."""
        return self.state in (pb.PLACED, pb.STOPPING)

    @property
    def over(self) -> bool:
        """Whether it has ended or failed; both states are final."""
        return self.state in (pb.ENDED, pb.FAILED)

    @property
    def count(self) -> int:
        """Number of slots it asks for; an elastic job may have others."""
        return self.spec.gpus or self.spec.cpu_slots

    @property
    def iteration_ns(self) -> int:
        """The iteration time of its profile, or on as many slots as it asks for, or `UNPROFILED_NS`."""
        if self.demand is not None:
            return self.demand.iteration_ns
        return UNPROFILED_NS if self.speed is None else self.speed.iteration_ns(self.count, True)

    def run_on_ns(self, slots: int, one_node: bool, done: Fraction) -> int:
        """The time that its iterations after `done` take on so many slots, on one server or not."""
        iteration_ns = self.iteration_ns if self.speed is None else self.speed.iteration_ns(slots, one_node)
        return math.ceil(max(Fraction(0), self.spec.iterations - done) * iteration_ns * self.count / slots)

    @property
    def work_ns(self) -> int:
        """The remaining time on each of its slots, at most 2**56."""
        return min(self.iteration_ns * max(0, self.spec.iterations - self.done), 1 << 56)

    @property
    def run_ns(self) -> int:
        """The time from its placement to its end, on as many slots as it asks for."""
        return self.iteration_ns * max(0, self.spec.iterations - self.done)

    @property
    def service_ns(self) -> int:
        """The total time over all of its slots, by which SRSF ranks waiting jobs."""
        return self.run_ns * self.count


@dataclass(frozen=True)
class ResourceClass:
    """A class of jobs with equal resource requests: if one of them does not fit, none does."""

    gpus: bool
    request: SlotRequest


def deadline_of(spec: pb.Job, demand: Demand | None, speed: JobSpeed | None, submitted_ns: int) -> int | None:
    """The deadline of a job as it was submitted, with the speed or profile of its specification; None if it has none.

    By its priority alpha it is T_arr + floor(alpha * T_run(1)), DRS (6) and (7); T_run(1) is the time on one slot.
    """
    if spec.HasField("deadline_ns"):
        return spec.deadline_ns
    if spec.HasField("priority") and (speed is not None or demand is not None):
        iteration_ns = speed.iteration_ns(1, True) if speed is not None else demand.iteration_ns  # type: ignore[union-attr]
        alone_ns = iteration_ns * spec.iterations * (spec.gpus or spec.cpu_slots)
        return submitted_ns + math.floor(Fraction(spec.priority) * alone_ns)
    return None


def wrong_state(field: str, job: JobRecord, expected: str) -> RequestError:
    """The error for a request that the state of a job does not permit; `expected` names the states that do."""
    return RequestError(
        ErrorCode.STATE,
        field,
        f"expected a job that is {expected}, got {job.id!r}, which is {job.state_name}",
    )


_SHOWN = tuple(
    {"id", *(each.name for each in fields(JobRecord))} & {*pb.JobStatus.DESCRIPTOR.fields_by_name} - {"state"}
)
"""The attributes of a record that are fields of its status."""


def done_iterations(job: JobRecord, now_ns: int) -> int:
    """The iterations that a job has done, counted in those with as many slots as it asked for; less than all.

    Of a job without an agent, or one that was restarted, it is an estimate: iterations take as long as in its profile,
    whatever its slots. `MeasuredSpeeds.done` is for jobs with a speed.
    """
    done = Fraction(job.done)
    if job.placed and (job.restarts or not job.agent):
        elapsed_ns = max(0, now_ns - job.placed_ns)
        done += Fraction(elapsed_ns * len(job.slots), job.iteration_ns * job.count)
    return min(int(done), job.spec.iterations - 1)
