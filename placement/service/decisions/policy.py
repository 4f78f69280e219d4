"""Policies of the service, by name."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.policy_names import Vocabulary, split_cassini
from placement.policies.catalogue import PlacementPolicy, placement_policy
from placement.policies.schedulers.contention import rule
from placement.policies.schedulers.registry import IMPORTED, LEARNED, SCHEDULERS
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import invalid

_SINGLE_JOBS = ("random", "themis", "pollux")

WHOLE_JOBS = tuple(name for name in SCHEDULERS if name not in _SINGLE_JOBS)
"""Schedulers of whole jobs: they decide for all jobs at once, and choose how many slots each gets."""

NAMES = Vocabulary("policy", ("random", "first-fit", "list-scheduling", "lwf-K", "themis", "pollux"))

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
        chooser: places single jobs: a compiled policy, or a scheduler; None: a scheduler decides for all jobs at once.
        cassini: whether Cassini chooses among its placements and shifts jobs in time.
    """

    name: str
    chooser: PlacementPolicy | Scheduler | None = None
    cassini: bool = False

    @property
    def moves_jobs(self) -> bool:
        """Whether it decides for all jobs at once."""
        return self.chooser is None


def parse_policy(name: str, field: str = "policy") -> ServicePolicy:
    """Parse a policy name: one of `NAMES`, alone or followed by ``+cassini``, one of `WHOLE_JOBS`, or a rule in rounds.

    Names of files are refused: jobs name policies, too.

    Raises:
        RequestError: the name is unknown.
    """
    if decides_for_all(name) and not name.startswith(FROM_FILES):
        return ServicePolicy(name)
    base, cassini = split_cassini(name)
    part = NAMES.find(base)
    if part is None:
        raise invalid(field, f"expected {ALLOWED}, got {name!r}")
    if base in ("themis", "pollux"):
        from placement.policies.schedulers import scheduling_policy

        return ServicePolicy(name, scheduling_policy.scheduling_policy(base).scheduler, cassini)
    return ServicePolicy(name, placement_policy(part.base, part.number or 1), cassini)


def service_policy(name: str) -> ServicePolicy:
    """The policy of a service, which may come from a file. A file is not read here.

    Raises:
        RequestError: the name is unknown.
    """
    return ServicePolicy(name) if name.startswith(FROM_FILES) else parse_policy(name)


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


def check_policy(asked: ServicePolicy, spec: pb.Job, field: str) -> None:
    """Raise `RequestError` if the policy is a scheduler that ignores a constraint of the job."""
    if not isinstance(asked.chooser, PlacementPolicy | None) and (spec.servers or spec.shares_gpus):
        what = "servers" if spec.servers else "shares_gpus"
        raise invalid(field, f"expected a policy that supports job.{what}, got {asked.name!r}")
