"""Registers jobs with the placement service: every check of a specification, and the record that is kept of it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from contextlib import suppress

from mltcp.core.errors import MltcpError
from placement.engines.engine import HeldJob
from placement.model.job_speed import JobSpeed
from placement.model.throughput import BETWEEN_BYTES_PER_S
from placement.service.context import ServiceContext
from placement.service.decisions.dispatcher import policy_named
from placement.service.decisions.explanation import check_possible
from placement.service.decisions.policy import ServicePolicy, check_policy, check_whole_job
from placement.service.engine_jobs import EngineJobs
from placement.service.lifecycle import JobLifecycle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import (
    ErrorCode,
    RequestError,
    check_deadline,
    check_due,
    check_job,
    demand_of,
    invalid,
)
from placement.service.protocol.speeds import speed_of
from placement.service.state.job_record import JobRecord, deadline_of
from placement.service.state.registry import Registry

HELD_PREFIX = "slurm-"
"""The beginning of the ids of jobs that their users gave to Slurm; its number follows."""


class JobRegistration:
    """The registration of jobs in one service context.

    Args:
        context: the recovered state.
        lifecycle: changes the jobs.
        policy: of the service.
    """

    def __init__(self, context: ServiceContext, lifecycle: JobLifecycle, policy: ServicePolicy) -> None:
        self._context, self._lifecycle = context, lifecycle
        self._registry = context.registry
        self._policy = policy

    def known(self, spec: pb.Job) -> JobRecord | None:
        """The registered job of this id, if any; raises `RequestError` if its specification differs."""
        known = self._registry.jobs.get(spec.id)
        if known is not None and known.spec != spec:
            different = next(
                name
                for name in spec.DESCRIPTOR.fields_by_name
                if getattr(spec, name) != getattr(known.spec, name)
            )
            raise RequestError(
                ErrorCode.EXISTS,
                f"job.{different}",
                f"expected the value of job {spec.id!r} as registered before, got another",
            )
        return known

    def add(self, spec: pb.Job, state: int, owner: str) -> None:
        """Register a new job of `owner` in this state. Raises `RequestError`: it can never run here."""
        now_ns = self._context.clock.now_ns()
        if not spec.held and len(self._registry.unended) >= self._context.rules.most_jobs:
            raise RequestError(
                ErrorCode.FULL,
                "job",
                f"expected at most {self._context.rules.most_jobs} jobs that are not over, got one more",
            )
        self._check(spec, now_ns)
        demand = demand_of(spec.profile, "job.profile") if spec.HasField("profile") else None
        speed = _speed_of(self._registry, spec)
        deadline_ns = deadline_of(spec, demand, speed, now_ns)
        check_due(spec, deadline_ns)
        job = JobRecord(
            self._registry.next_job_number,
            spec,
            demand,
            state,
            spec.policy,
            submitted_ns=now_ns,
            deadline_ns=deadline_ns,
            owner=owner,
            speed=speed,
        )
        check_possible(self._registry, job)
        self._lifecycle.add(job)

    def _check(self, spec: pb.Job, now_ns: int) -> None:
        check_job(spec)
        check_deadline(spec, now_ns)
        if spec.policy:
            check_policy(policy_named(spec.policy, "job.policy"), spec, "job.policy")
        check_whole_job(self._policy, spec)
        _check_model(self._context, spec)
        if self._context.rules.classes is not None:
            self._context.rules.classes.check_own(spec.environment, "job.environment")
        for place, server in enumerate(spec.servers):
            self._registry.server_number(server, f"job.servers[{place}]")


def _speed_of(registry: Registry, spec: pb.Job) -> JobSpeed | None:
    """The speed of a new job, in which the bandwidth between servers is that of the slowest one if it does not say.

    Raises:
        RequestError: it is invalid, does not go as far as the job's slots, or the job has a model in a table too.
    """
    if not spec.HasField("speed"):
        return None
    slowest_bps = min((server.nic_bps for _, server in registry.servers_in_cluster()), default=0)
    speed = speed_of(
        spec.speed, "job.speed", max(1, slowest_bps // 8) if slowest_bps else BETWEEN_BYTES_PER_S
    )
    if spec.model:
        raise invalid(
            "job.speed", f"expected none beside job.model, which has its speeds, got {spec.model!r}"
        )
    wanted = spec.gpus or spec.cpu_slots
    if speed.most is not None and speed.most < wanted:
        raise invalid(
            "job.speed.table.step_ns",
            f"expected times up to {wanted} slots, as the job asks for, got {speed.most}",
        )
    return speed


def check_not_held(spec: pb.Job) -> None:
    """Raise `RequestError` if a client says that a job is held in Slurm, or gives it the id of such a one."""
    if unicodedata.normalize("NFKC", spec.id).casefold().startswith(HELD_PREFIX):
        raise invalid(
            "job.id",
            f"expected another beginning than {HELD_PREFIX}, which jobs of Slurm have, got {spec.id[:40]!r}",
        )
    # Whoever could name a Slurm job here would have the service release it, whoever it belongs to.
    if spec.held:
        raise invalid("job.held", f"expected none, which only the service sets, got {spec.held!r}")


def _check_model(context: ServiceContext, spec: pb.Job) -> None:
    """Raise `RequestError` if a job names a model without need, or none that the service's table has."""
    if context.contention is not None:
        context.contention.check_job(spec)
    elif spec.model or spec.iteration_samples:
        field, value = ("model", spec.model) if spec.model else ("iteration_samples", spec.iteration_samples)
        raise invalid(
            f"job.{field}", f"expected none, since the service has no table of models (--table), got {value}"
        )


class HeldJobs:
    """The jobs that users gave to the engine's workload manager, which holds them until they are placed.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        registration: registers them.
        engine_jobs: declines those that cannot be registered.
    """

    def __init__(
        self,
        context: ServiceContext,
        lifecycle: JobLifecycle,
        registration: JobRegistration,
        engine_jobs: EngineJobs,
    ) -> None:
        self._context, self._registry, self._lifecycle = context, context.registry, lifecycle
        self._registration, self._engine_jobs = registration, engine_jobs

    def update(self, held: Sequence[HeldJob]) -> None:
        """Queue the jobs that are held now, and end those that their users have taken back."""
        wanted = {each.reference: self._spec_of(each) for each in held}
        for job in list(self._registry.unended.values()):
            if not job.spec.held or job.state != pb.QUEUED:
                continue
            if job.spec.held not in wanted:
                self._lifecycle.end(job, pb.ENDED, "it is not held in Slurm any more")
            elif job.spec != wanted[job.spec.held]:
                self._lifecycle.end(job, pb.ENDED, "its user changed what it asks for")
        for each in held:
            self._context.begin(self._take(each, wanted[each.reference]))

    def _spec_of(self, held: HeldJob) -> pb.Job:
        """The specification of a held job; it may not run on hosts that the service does not know."""
        return pb.Job(
            id=f"{HELD_PREFIX}{held.reference}",
            gpus=held.gpus,
            slots_per_server=held.per_host,
            iterations=1,
            held=held.reference,
            servers=[host for host in held.hosts if self._registry.number_of(host) is not None],
        )

    async def _take(self, held: HeldJob, spec: pb.Job) -> None:
        try:
            if held.hosts and not spec.servers:
                raise invalid("job.servers", f"expected a known server, got {', '.join(held.hosts[:8])}")
            known = self._registry.jobs.get(spec.id)
            if known is not None and known.over:
                self._context.forget_job(
                    known
                )  # Slurm holds it again, or has given its number to another job
                known = None
            if known is None:
                self._context.check_accepts("job")
                self._registration.add(spec, pb.QUEUED, held.owner)
        except RequestError as error:
            with suppress(MltcpError):  # it is told again
                await self._engine_jobs.decline(held.reference, str(error))
