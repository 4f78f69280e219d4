"""Policies of the service, by name."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.policy_names import Vocabulary, split_cassini
from placement.policies import catalogue
from placement.policies.schedulers.contention import rule
from placement.policies.schedulers.registry import IMPORTED, LEARNED, SCHEDULERS, named_scheduler
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import invalid

_SINGLE_JOBS = ("random", "themis", "pollux")

WHOLE_JOBS = tuple(name for name in SCHEDULERS if name not in _SINGLE_JOBS)
"""Schedulers of whole jobs: they decide for all jobs at once, and choose how many slots each gets."""

NAMES = Vocabulary("policy", (*catalogue.placement_names("-K"), "themis", "pollux"))

ALLOWED = (
    f"{NAMES.allowed}, each alone or with +cassini, or, for all jobs, one of "
    f"{', '.join((*WHOLE_JOBS, *rule.SHOWN))}"
)

FROM_FILES = (*LEARNED, IMPORTED)
"""Before the path of a checkpoint, or the module of a scheduler: only the operator may name these."""


def decides_for_all(name: str) -> bool:
    """Whether this is the name of a scheduler of whole jobs."""
    return name in WHOLE_JOBS or name.startswith(FROM_FILES) or rule.NAMES.find(name) is not None


@dataclass(frozen=True)
class ServicePolicy:
    """A placement policy or scheduler, with or without Cassini.

    Attributes:
        name: the name under which it is requested.
        cassini: whether Cassini chooses among its placements and shifts jobs in time.
        compiled: the compiled placement policy; None for a scheduler.
        scheduler: the scheduler that places single jobs; None for the others.
        whole_jobs: the scheduler that decides for all jobs; None for a policy that places single ones.
        deferred: whether it is a scheduler that decides for all jobs, which comes from a file that has not been read.
    """

    name: str
    cassini: bool
    compiled: catalogue.PlacementPolicy | None
    scheduler: Scheduler | None = None
    whole_jobs: Scheduler | None = None
    deferred: bool = False

    @property
    def moves_jobs(self) -> bool:
        """Whether it decides for all jobs at once."""
        return self.whole_jobs is not None or self.deferred


def parse_policy(name: str, field: str = "policy") -> ServicePolicy:
    """Parse a policy name: one of `NAMES`, alone or followed by ``+cassini``, one of `WHOLE_JOBS`, or a rule in rounds.

    Names of files are refused: jobs name policies, too.

    Raises:
        RequestError: the name is unknown.
    """
    if name in WHOLE_JOBS or rule.NAMES.find(name) is not None:
        return ServicePolicy(name, False, None, whole_jobs=named_scheduler(name))
    base, cassini = split_cassini(name)
    part = NAMES.find(base)
    if part is None:
        raise invalid(field, f"expected {ALLOWED}, got {name!r}")
    if base in ("themis", "pollux"):
        from placement.policies.schedulers import scheduling_policy

        return ServicePolicy(name, cassini, None, scheduling_policy.scheduling_policy(base).scheduler)
    return ServicePolicy(name, cassini, catalogue.placement_policy(part.base, part.number or 1))


def service_policy(name: str) -> ServicePolicy:
    """The policy of a service, which may come from a file. A file is not read here.

    Raises:
        RequestError: the name is unknown.
    """
    if name.startswith(FROM_FILES):
        return ServicePolicy(name, False, None, deferred=True)
    return parse_policy(name)


def check_whole_job(service: ServicePolicy, spec: pb.Job, field: str = "job") -> None:
    """Check that a job and the policies of its service and its own go together.

    Args:
        service: the policy of the service.
        spec: the job.
        field: of the job in messages.

    Raises:
        RequestError: the job names a scheduler of whole jobs, which only a service can have; or the service has one,
            and the job cannot be moved or has constraints that such a scheduler ignores.
    """
    if not service.moves_jobs:
        if decides_for_all(spec.policy):
            raise invalid(
                f"{field}.policy",
                f"expected a policy for single jobs, since mltcp-placement serve --policy chooses one for all jobs, "
                f"got {spec.policy!r}",
            )
        return
    if spec.policy:
        raise invalid(
            f"{field}.policy", f"expected none beside the service's {service.name}, got {spec.policy!r}"
        )
    if not spec.elastic or not spec.command:
        lacks = "one that is not elastic" if spec.command else "one without a command"
        raise invalid(
            f"{field}.elastic",
            f"expected a job with a command that can be stopped and resumed, since {service.name} moves jobs, "
            f"got {lacks}",
        )
    for name in ("servers", "shares_gpus", "memory_mb", "slots_per_server"):
        if getattr(spec, name):
            raise invalid(f"{field}.{name}", f"expected none under {service.name}, got {getattr(spec, name)}")
