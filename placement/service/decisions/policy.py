"""The policies that the service places by, by name."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.policy_names import Vocabulary, split_cassini
from placement.policies import catalogue
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.protocol.request_error import invalid

NAMES = Vocabulary("policy", ("random", "first-fit", "list-scheduling", "lwf-K", "themis", "pollux"))


@dataclass(frozen=True)
class ServicePolicy:
    """How a job is placed.

    Attributes:
        name: as it is asked for.
        cassini: whether the candidate whose traffic fits best is taken, and the job is shifted in time.
        compiled: the placement policy that is compiled, or None ...
        scheduler: ... for the scheduler that it is instead.
    """

    name: str
    cassini: bool
    compiled: catalogue.PlacementPolicy | None
    scheduler: Scheduler | None = None


def parse_policy(name: str, field: str = "policy") -> ServicePolicy:
    """The policy of this name: one of `NAMES`, alone or followed by ``+cassini``.

    Raises:
        RequestError: there is none.
    """
    base, cassini = split_cassini(name)
    part = NAMES.find(base)
    if part is None:
        raise invalid(field, f"is {name!r}: {NAMES.allowed}, each alone or with +cassini, are allowed")
    if base in ("themis", "pollux"):
        from placement.policies.schedulers import scheduling_policy

        return ServicePolicy(name, cassini, None, scheduling_policy.scheduling_policy(base).scheduler)
    return ServicePolicy(name, cassini, catalogue.placement_policy(part.base, part.number or 1))
