"""The policies that the service places by, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.policies import catalogue
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.protocol.request_error import invalid
from placement.service.state.job import CASSINI_SUFFIX

NAMES = ("random", "first-fit", "list-scheduling", "lwf-K", "themis", "pollux")

_LWF = re.compile(r"lwf-(\d{1,6})")


@dataclass(frozen=True)
class Policy:
    """How a job is placed.

    Attributes:
        name: as it is asked for.
        cassini: whether the candidate whose traffic fits best is taken, and the job is shifted in time.
        compiled: the placement policy that is compiled, or None ...
        scheduler: ... for the scheduler that it is instead.
    """

    name: str
    cassini: bool
    compiled: catalogue.Placement | None
    scheduler: Scheduler | None = None


def policy(name: str, field: str = "policy") -> Policy:
    """The policy of this name: one of `NAMES`, alone or followed by ``+cassini``.

    Raises:
        Refused: there is none.
    """
    base = name.removesuffix(CASSINI_SUFFIX)
    cassini = name.endswith(CASSINI_SUFFIX)
    try:
        if base in ("themis", "pollux"):
            from placement.policies.schedulers import augmented

            return Policy(name, cassini, None, augmented.policy(base).scheduler)
        found = _LWF.fullmatch(base)
        if base == "lwf":
            raise UsageError("lwf")
        return Policy(
            name, cassini, catalogue.placement_policy("lwf" if found else base, int(found[1]) if found else 1)
        )
    except UsageError:
        allowed = ", ".join(NAMES)
        raise invalid(
            field, f"is {name!r}: {allowed}, each alone or with {CASSINI_SUFFIX}, are allowed"
        ) from None
