"""Approaches: a congestion control, a placement, Cassini's time shifts and an admission gate, combined in one name."""

from __future__ import annotations

from dataclasses import dataclass

from bench.compare.approaches.policy import Policy, allowed_policies, parse_policy
from bench.compare.results.runs import FAIR, ISOLATED
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import CASSINI, Vocabulary, parse_names, split_name
from placement.policies.catalogue import communication_policy, placement_names

SCHEDULER_NAMES = Vocabulary("scheduler", ("themis", "pollux", *placement_names("[-K]")))
GATE_NAMES = Vocabulary("gate", ("srsf-N", "ada-srsf", "ada-srsf-k"))


@dataclass(frozen=True)
class Approach:
    """A way to share the network, by its name.

    Attributes:
        name: as it was typed.
        policy: the congestion control and its parameters.
        placement: the scheduler that places the jobs of a trace; None: that of the comparison.
        cassini: whether Cassini chooses among the scheduler's candidates and shifts the jobs in time.
        gate: the policy that admits all-reduces; None: they start as soon as they are ready.
    """

    name: str
    policy: Policy
    placement: str | None = None
    cassini: bool = False
    gate: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def isolated(self) -> bool:
        """Whether every job runs alone: the yardstick of the others."""
        return self.policy.isolated

    @property
    def only_places(self) -> bool:
        """Whether it differs from `fair` in the placement alone, which makes no difference on a single link."""
        return self.placement is not None and not self.cassini and self.gate is None


def parse_approach(text: str, control: str) -> Approach:
    """The approach of this name; `control` is the congestion control of names that contain none.

    A name is `isolated`, `fair`, a congestion control with or without modifiers (see `parse_policy`), or a combination
    of a scheduler, `cassini`, a gate and a congestion control, joined by ``+``: ``themis+cassini``, ``lwf-1+ada-srsf``.

    Raises:
        UsageError: it is none of these.
    """
    parts = split_name(text)
    if len(parts) == 1 and not _is_combined(text):
        return Approach(text, _control(text, control))
    policy = placement = gate = None
    cassini = False
    for part in parts:
        if part == CASSINI and not cassini:
            cassini = True
        elif SCHEDULER_NAMES.find(part) and placement is None:
            placement = part
        elif GATE_NAMES.find(part) and gate is None:
            gate = communication_policy(part).name
        elif not _is_combined(part) and part not in (ISOLATED, FAIR) and policy is None:
            policy = _control(part, control)
        else:
            raise UsageError(
                f"policy: expected at most one scheduler, cassini, one gate and one congestion control, "
                f"such as themis+cassini or lwf-1+ada-srsf, got {text!r}"
            )
    return Approach(text, policy or parse_policy(control, control), placement, cassini, gate)


def parse_approaches(text: str, control: str) -> tuple[Approach, ...]:
    """Several approaches, separated by commas.

    Raises:
        UsageError: there is none, one occurs twice, or one is unknown.
    """
    return parse_names(text, lambda name: parse_approach(name, control))


def _is_combined(part: str) -> bool:
    """Whether the part of a name stands for something else than a congestion control."""
    return part == CASSINI or SCHEDULER_NAMES.find(part) is not None or GATE_NAMES.find(part) is not None


def _control(text: str, control: str) -> Policy:
    if text == FAIR:
        return parse_policy(control, control)
    known = (FAIR, *allowed_policies(), CASSINI, *SCHEDULER_NAMES.names, *GATE_NAMES.names)
    Vocabulary("policy", known, modified=True).parse(text)
    return parse_policy(text, control)
