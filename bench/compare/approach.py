"""An approach: all that decides how jobs share the network, as the name that a person types.

It is a congestion control, a placement, whether Cassini shifts the jobs in time, and whether a gate admits their
all-reduces; a name says which of them it sets, and the rest is what the comparison has for all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.compare.contend_results import ISOLATED
from bench.compare.policy import Policy, allowed_policies, parse_policy
from mltcp.core.errors import UsageError
from placement.policies.catalogue import communication_policy

FAIR, CASSINI = "fair", "cassini"
SCHEDULERS = ("themis", "pollux", "random", "first-fit", "list-scheduling", "lwf-K")
"""What places the jobs of a trace; lwf-1 is LWF with kappa 1."""
GATES = ("srsf-N", "ada-srsf", "ada-srsf-k")

_LWF = re.compile(r"lwf-([1-9]\d{0,3})")
_GATE = re.compile(r"srsf-[1-9]\d{0,5}|ada-srsf(-k)?")


@dataclass(frozen=True)
class Approach:
    """What a name stands for.

    Attributes:
        name: as it was typed.
        policy: the congestion control, and what it needs.
        placement: which scheduler places the jobs of a trace; None: that of the comparison.
        cassini: whether Cassini chooses among the scheduler's candidates and shifts the jobs in time.
        gate: the policy that admits all-reduces; None: they begin when they are ready.
    """

    name: str
    policy: Policy
    placement: str | None = None
    cassini: bool = False
    gate: str | None = None

    @property
    def isolated(self) -> bool:
        """Whether every job runs alone: the yardstick."""
        return self.policy.isolated

    @property
    def only_places(self) -> bool:
        """Whether it differs from `fair` in the placement alone, which a shared link leaves no room for."""
        return self.placement is not None and not self.cassini and self.gate is None


def parse_approach(text: str, control: str) -> Approach:
    """The approach of this name; `control` is the congestion control of those that name none.

    A name is `isolated`, `fair`, a congestion control with or without variations (`bench.compare.policy`), or one to
    three of a scheduler, `cassini`, a gate and a congestion control, joined by ``+``: ``themis+cassini``,
    ``lwf-1+ada-srsf``.

    Raises:
        UsageError: it is none of these; the message names what is allowed.
    """
    if text == FAIR:
        return Approach(text, parse_policy(control, control))
    parts = [part for part in text.split("+") if part]
    if len(parts) == 1 and not _is_own(parts[0]):
        return Approach(text, _control(text, control))
    return _joined(text, parts, control)


def parse_approaches(text: str, control: str) -> tuple[Approach, ...]:
    """Several, separated by commas, each once.

    Raises:
        UsageError: none, one twice, or an unknown one.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--policies: at least one is needed, such as isolated,fair,mltcp_cubic")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise UsageError(f"--policies: {twice} is there twice")
    return tuple(parse_approach(name, control) for name in names)


def _is_own(part: str) -> bool:
    return part == CASSINI or _is_scheduler(part) or _GATE.fullmatch(part) is not None


def _is_scheduler(part: str) -> bool:
    return part in SCHEDULERS or _LWF.fullmatch(part) is not None


def _control(text: str, control: str) -> Policy:
    base = text.partition("@")[0]
    if base != ISOLATED and base not in allowed_policies():
        known = ", ".join([FAIR, *allowed_policies(), CASSINI, *SCHEDULERS, *GATES])
        raise UsageError(f"unknown policy {text!r}; choose from {known}, or several joined by +")
    return parse_policy(text, control)


def _joined(text: str, parts: list[str], control: str) -> Approach:
    placement = gate = base = None
    cassini = False
    for part in parts:
        if part == CASSINI and not cassini:
            cassini = True
        elif _is_scheduler(part) and placement is None:
            placement = part
        elif _GATE.fullmatch(part) and gate is None:
            gate = _gate(part)
        elif not _is_own(part) and base is None and part.partition("@")[0] not in (ISOLATED, FAIR):
            base = _control(part, control)
        else:
            raise UsageError(
                f"policy {text!r}: one scheduler, cassini, one gate and one congestion control are allowed, "
                "such as themis+cassini or lwf-1+ada-srsf"
            )
    return Approach(text, base or parse_policy(control, control), placement, cassini, gate)


def _gate(name: str) -> str:
    try:
        return communication_policy(name).name
    except UsageError as error:
        raise UsageError(str(error)) from None
