"""Policies of the service, by name."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.policy_names import Vocabulary, split_cassini
from placement.policies import catalogue
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.protocol.request_error import invalid

NAMES = Vocabulary("policy", ("random", "first-fit", "list-scheduling", "lwf-K", "themis", "pollux"))


@dataclass(frozen=True)
class ServicePolicy:
    """A placement policy or scheduler, with or without Cassini.

    Attributes:
        name: the name under which it is requested.
        cassini: whether Cassini chooses among its placements and shifts jobs in time.
        compiled: the compiled placement policy; None for a scheduler.
        scheduler: the scheduler; None for a compiled policy.
    """

    name: str
    cassini: bool
    compiled: catalogue.PlacementPolicy | None
    scheduler: Scheduler | None = None


def parse_policy(name: str, field: str = "policy") -> ServicePolicy:
    """Parse a policy name: one of `NAMES`, alone or followed by ``+cassini``.

    Raises:
        RequestError: the name is unknown.
    """
    base, cassini = split_cassini(name)
    part = NAMES.find(base)
    if part is None:
        raise invalid(field, f"expected {NAMES.allowed}, each alone or with +cassini, got {name!r}")
    if base in ("themis", "pollux"):
        from placement.policies.schedulers import scheduling_policy

        return ServicePolicy(name, cassini, None, scheduling_policy.scheduling_policy(base).scheduler)
    return ServicePolicy(name, cassini, catalogue.placement_policy(part.base, part.number or 1))
