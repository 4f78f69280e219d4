"""A congestion control with its parameters, and to which connections a bytes_ratio of MLTCP belongs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bench.compare.approaches.policy import Policy, parse_policy
from bench.compare.results.runs import ISOLATED
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS

_FIELD = "ratio="
_BASE = "cubic"


class Ratio(StrEnum):
    """Which connections of a server share one bytes_ratio; a worker has a single connection to a server in any case."""

    WORKER = "worker"
    """Every worker is a job of its own: each connection has its own iteration, with the policy's law."""
    JOB = "job"
    """All workers are one job: its iteration in the server is what it sends to all of them between pauses."""
    FLOW = "flow"
    """Connections belong to no job, and each learns its own iterations: with the paper's law and the kernel's start."""


@dataclass(frozen=True)
class Variant:
    """One of the things that are compared: a policy, and the connections that share a bytes_ratio."""

    name: str
    policy: Policy
    ratio: Ratio = Ratio.WORKER

    def __str__(self) -> str:
        return self.name

    @property
    def of_mltcp(self) -> bool:
        """Whether the congestion control is one of MLTCP's, so that the ratio matters."""
        return self.policy.control in MLTCP_CONTROLS


def parse_variant(text: str) -> Variant:
    """The variant of this name: a policy of `parse_policy` that may have a modifier ``ratio=worker|job|flow``.

    Raises:
        UsageError: it is none, or a policy that cannot be compared here.
    """
    base, _, rest = text.partition("@")
    modifiers = rest.split(":") if rest else []
    ratios = [each.removeprefix(_FIELD) for each in modifiers if each.startswith(_FIELD)]
    others = [each for each in modifiers if not each.startswith(_FIELD)]
    policy = parse_policy("@".join([base, ":".join(others)]) if others else base, _BASE)
    if policy.name == ISOLATED or policy.pacing is not None:
        raise UsageError(f"controls: expected congestion controls, got {text!r}")
    if not ratios:
        return Variant(text, policy)
    if policy.control not in MLTCP_CONTROLS:
        raise UsageError(f"controls: expected ratio= after {', '.join(MLTCP_CONTROLS)} only, got {text!r}")
    try:
        return Variant(text, policy, Ratio(ratios[-1]))
    except ValueError:
        raise UsageError(f"controls: ratio: expected {', '.join(Ratio)}, got {ratios[-1]!r}") from None


def parse_variants(text: str) -> tuple[Variant, ...]:
    """Several variants, separated by commas.

    Raises:
        UsageError: there is none, one occurs twice, or one is unknown.
    """
    return parse_names(text, parse_variant)
