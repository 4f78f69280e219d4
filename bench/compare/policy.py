"""A policy: how the jobs of a comparison share the link, as the name that a person types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.compare.contend_results import ISOLATED
from bench.lab.paced_host import Pacing
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_number
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, available
from mltcp.ebpf.jobs import control_for
from mltcp.ebpf.layout import KernelJob, Start
from mltcp.pacing.rate_law import CONSTANTS

PACED = ("dcqcn", "mltcp_dcqcn")
"""Policies in which a daemon on every host sets the rates; the congestion control only keeps the connections full."""

PACED_CONTROL = "reno"
PACED_INTERVAL_S = 0.002


@dataclass(frozen=True)
class Policy:
    """A congestion control and, for ours, the law of its jobs; or how every host's daemon paces them.

    ``isolated`` runs every job alone; it is the yardstick of the others.
    """

    name: str
    control: str
    law: KernelJob
    pacing: Pacing | None = None

    @property
    def isolated(self) -> bool:
        """Whether the jobs run one at a time."""
        return self.name.partition("@")[0] == ISOLATED

    def job(self, name: str) -> KernelJob:
        """The entry of a job that runs under this policy."""
        return replace(self.law, name=name)


def parse_policy(text: str, isolated_control: str) -> Policy:
    """The policy that a person names: a congestion control, ``isolated``, or one of ours with variations.

    Variations follow an ``@`` and are separated by colons: a shape of F, or one of ``start=``, ``decrease=``,
    ``slope=``, ``intercept=``; for example ``mltcp_reno@quadratic`` or ``mltcp_dctcp@start=keep:slope=3.5``.

    Raises:
        UsageError: an unknown policy or variation; the message names what is allowed.
    """
    base, _, variations = text.partition("@")
    if base in PACED:
        return _paced(base, variations, text)
    allowed = allowed_policies()
    if base not in allowed:
        raise UsageError(f"unknown policy {base!r}; choose from {', '.join(allowed)}")
    if variations and base not in MLTCP_CONTROLS:
        raise UsageError(f"policy {text!r}: only {', '.join([*MLTCP_CONTROLS, *PACED])} have variations")
    law = KernelJob("", Aggressiveness(Shape.LINEAR))
    for variation in filter(None, variations.split(":")):
        law = _varied(law, variation, text)
    return Policy(text, control_for(isolated_control if base == ISOLATED else base), law)


def _paced(law: str, variations: str, text: str) -> Policy:
    """A policy of pacing. Its variations: base=CONTROL, interval=S, by=socket (without a daemon), those of F, and the
    law's constants by their names.
    """
    control, interval_s = PACED_CONTROL, PACED_INTERVAL_S
    job, constants, by_socket = KernelJob("", Aggressiveness(Shape.LINEAR)), [], False
    for variation in filter(None, variations.split(":")):
        field, _, value = variation.partition("=")
        if field == "base":
            control = control_for(value)
        elif field == "interval":
            interval_s = parse_number(value, field=f"policy {text!r}: {field}")
        elif variation == "by=socket":
            by_socket = True
        elif field in CONSTANTS:
            constants.append((field, parse_number(value, field=f"policy {text!r}: {field}")))
        else:
            job = _varied(job, variation, text)
    return Policy(
        text, control, job, Pacing(law, interval_s, job.aggressiveness, tuple(constants), by_socket)
    )


def allowed_policies() -> list[str]:
    """The policies that can be run on this host."""
    return list(dict.fromkeys([ISOLATED, *available(), "dctcp", *CONTROLS, *PACED]))


def _varied(law: KernelJob, variation: str, where: str) -> KernelJob:
    field, equals, value = variation.partition("=")
    f = law.aggressiveness
    if not equals:
        return replace(law, aggressiveness=replace(f, shape=Shape.from_name(field)))
    variations: dict[str, Callable[[], KernelJob]] = {
        "start": lambda: replace(law, start=Start[value.upper()]),
        "decrease": lambda: replace(law, decrease=float(value)),
        "slope": lambda: replace(law, aggressiveness=replace(f, slope=float(value))),
        "intercept": lambda: replace(law, aggressiveness=replace(f, intercept=float(value))),
    }
    if field not in variations:
        shapes = ", ".join(shape.label for shape in Shape)
        raise UsageError(
            f"policy {where!r}: unknown variation {field!r}; choose from {', '.join(variations)} or {shapes}"
        )
    try:
        return variations[field]()
    except (KeyError, ValueError):
        starts = ", ".join(start.name.lower() for start in Start)
        what = starts if field == "start" else "a number"
        raise UsageError(f"policy {where!r}: {field} cannot be {value!r}; allowed: {what}") from None
