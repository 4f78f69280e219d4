"""Registers jobs with the placement service: every check of a specification, and the record that is kept of it."""

from __future__ import annotations

import unicodedata

from placement.policies.catalogue import PlacementPolicy
from placement.service.context import ServiceContext
from placement.service.decisions.explanation import check_possible
from placement.service.decisions.placer import policy_named
from placement.service.decisions.policy import ServicePolicy, check_whole_job
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
from placement.service.state.job_record import JobRecord, deadline_of
from placement.service.state.persistence import save_new_job


class JobRegistration:
    """The registration of jobs in one service context.

    Args:
        context: the recovered state.
        policy: of the service.
    """

    def __init__(self, context: ServiceContext, policy: ServicePolicy) -> None:
        self._context = context
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
        if not spec.held and self._registry.unended >= self._context.rules.most_jobs:
            raise RequestError(
                ErrorCode.FULL,
                "job",
                f"expected at most {self._context.rules.most_jobs} jobs that are not over, got one more",
            )
        self._check(spec, now_ns)
        demand = demand_of(spec.profile, "job.profile") if spec.HasField("profile") else None
        deadline_ns = deadline_of(spec, demand, now_ns)
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
        )
        check_possible(self._registry, job)
        self._registry.add_job(job)
        save_new_job(self._context.store, job)

    def _check(self, spec: pb.Job, now_ns: int) -> None:
        check_job(spec)
        check_deadline(spec, now_ns)
        if spec.policy:
            check_policy(policy_named(spec.policy, "job.policy"), spec, "job.policy")
        check_whole_job(self._policy, spec)
        _check_model(self._context, spec)
        for place, server in enumerate(spec.servers):
            self._registry.server_number(server, f"job.servers[{place}]")


HELD_PREFIX = "slurm-"
"""The beginning of the ids of jobs that their users gave to Slurm; its number follows."""


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


def check_policy(asked: ServicePolicy, spec: pb.Job, field: str) -> None:
    """Raise `RequestError` if the policy is a scheduler that ignores a constraint of the job."""
    if not isinstance(asked.chooser, PlacementPolicy | None) and (spec.servers or spec.shares_gpus):
        what = "servers" if spec.servers else "shares_gpus"
        raise invalid(field, f"expected a policy that supports job.{what}, got {asked.name!r}")


def _check_model(context: ServiceContext, spec: pb.Job) -> None:
    """Raise `RequestError` if a job names a model without need, or none that the service's table has."""
    if context.contention is not None:
        context.contention.check_job(spec)
    elif spec.model or spec.iteration_samples:
        field, value = ("model", spec.model) if spec.model else ("iteration_samples", spec.iteration_samples)
        raise invalid(
            f"job.{field}", f"expected none, since the service has no table of models (--table), got {value}"
        )
