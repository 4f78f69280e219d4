"""Traffic classes of jobs at their launch: those allowed, the one that a job gets, and what its ranks are told.

The ranks get the class in their environment: ``NCCL_IB_TC`` for RDMA, whose value is the byte of an IP header with the
DSCP and the bits of ECN, ``NCCL_IB_SL`` if asked for, and ``MLTCP_DSCP``, by which the ``mltcp`` backend sets the DSCP
of its sockets. The class of running processes does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import UsageError
from placement.policies.traffic_classes import SettledClass, class_beside
from placement.service.protocol.checks import invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry

MOST_CLASSES = 8
"""The queues of a port of common switches, and the class selectors of DSCP (RFC 2474)."""

RULES = ("intensity", "remaining")
AGE_S = 86_400.0
_ECT0 = 2
"""ECN-capable (RFC 3168): DCQCN needs marks."""

TRAFFIC_CLASS, SERVICE_LEVEL, DSCP = "NCCL_IB_TC", "NCCL_IB_SL", "MLTCP_DSCP"


@dataclass(frozen=True)
class ClassRules:
    """The classes that an administrator allows, and how jobs get them.

    Attributes:
        dscps: of the classes, from the lowest to the one that goes first; 2 to 8, of 0 to 63.
        rule: `intensity`, the GPU time of an iteration over the time that its traffic takes on its slowest link goes
            first if it is large (Crux, SIGCOMM 2024), or `remaining`, the GPU time that a job has left if it is small.
        age_s: a job has a class more for each such time between its submission and its start.
        service_level: whether ranks are told the service level of InfiniBand too, the upper half of the DSCP.

    Raises:
        UsageError: a value is out of range; its field is named as on the command line.
    """

    dscps: tuple[int, ...]
    rule: str = RULES[0]
    age_s: float = AGE_S
    service_level: bool = False

    def __post_init__(self) -> None:
        count = len(self.dscps)
        if not (
            2 <= count <= MOST_CLASSES and len(set(self.dscps)) == count and set(self.dscps) <= set(range(64))
        ):
            raise _not_classes(",".join(map(str, self.dscps)))
        if self.rule not in RULES:
            raise UsageError(f"--class-rule: expected {' or '.join(RULES)}, got {self.rule!r}")
        if not 1 <= self.age_s <= 1e9:
            raise UsageError(f"--class-age: expected 1 to 1e9 s, got {self.age_s:g}")

    @property
    def highest(self) -> int:
        """The class that goes first."""
        return len(self.dscps) - 1

    def variables(self, traffic_class: int) -> dict[str, str]:
        """The environment variables of a job in this class."""
        dscp = self.dscps[min(traffic_class, self.highest)]
        level = {SERVICE_LEVEL: str(dscp >> 3)} if self.service_level else {}
        return {TRAFFIC_CLASS: str(dscp << 2 | _ECT0), DSCP: str(dscp), **level}

    def check_own(self, environment: Mapping[str, str], field: str) -> None:
        """Raise `RequestError` if a user has set a variable to a class that is not allowed; an empty value is."""
        for name in self.variables(0):
            text = environment.get(name, "")
            if text and self._class_of(name, text) is None:
                allowed = ", ".join(
                    dict.fromkeys(self.variables(each)[name] for each in range(len(self.dscps)))
                )
                raise invalid(
                    f"{field}.{name}",
                    f"expected {allowed} or none, the traffic classes that are allowed here, got {text[:40]!r}",
                )

    def own_class(self, environment: Mapping[str, str]) -> int | None:
        """The class that a user has chosen by a variable, 0 by an empty one; None: they have set none."""
        names = [name for name in self.variables(0) if name in environment]
        chosen = [self._class_of(name, environment[name]) for name in names]
        return next((each for each in chosen if each is not None), 0) if names else None

    def _class_of(self, name: str, text: str) -> int | None:
        """The lowest class that has this value in the variable; None: none has. NCCL's numbers may be hexadecimal."""
        try:
            value = int(text, 0)
        except ValueError:
            return None
        if name == TRAFFIC_CLASS:
            value |= 3  # whatever it says of ECN
        for number, dscp in enumerate(self.dscps):
            if value == {TRAFFIC_CLASS: dscp << 2 | 3, SERVICE_LEVEL: dscp >> 3, DSCP: dscp}[name]:
                return number
        return None


def parse_classes(
    text: str, rule: str = RULES[0], age_s: float = AGE_S, service_level: bool = False
) -> ClassRules:
    """The rules for ``4``, the class selectors CS0 to CS3, or for DSCPs such as ``0,10,26,34``.

    Raises:
        UsageError: a value is out of range.
    """
    numbers = text.split(",")
    if not all(each.isdecimal() and len(each) < 4 for each in numbers):
        raise _not_classes(repr(text))
    if len(numbers) > 1:
        return ClassRules(tuple(map(int, numbers)), rule, age_s, service_level)
    if not 2 <= int(text) <= MOST_CLASSES:
        raise UsageError(f"--classes: expected 2 to {MOST_CLASSES}, got {text}")
    return ClassRules(tuple(8 * each for each in range(int(text))), rule, age_s, service_level)


def _not_classes(shown: str) -> UsageError:
    return UsageError(
        f"--classes: expected 2 to {MOST_CLASSES}, or as many different DSCPs of 0 to 63, the lowest class first, "
        f"got {shown}"
    )


Done = Callable[[JobRecord], Fraction]
"""The iterations that a job has done."""


def launch_class(registry: Registry, job: JobRecord, rules: ClassRules, done: Done) -> int | None:
    """The class of a job that has been placed; None if it uses no link.

    What its user has set counts; otherwise it is by the rule, beside the jobs with which it shares links and whose
    classes are known, and the lowest one where nothing is known of its traffic or its length.
    """
    if not job.links:
        return None
    own = rules.own_class(job.spec.environment)
    if own is not None:
        return own
    worth = worth_of(registry, job, rules.rule, done)
    chosen = 0
    if worth is not None:
        beside = {other for link in job.links for other in registry.jobs_of.get(link, ())} - {job.id}
        others = [registry.jobs[each] for each in sorted(beside)]
        settled = [
            SettledClass(worth_of(registry, each, rules.rule, done) or 0.0, each.traffic_class)
            for each in others
            if each.traffic_class is not None
        ]
        chosen = class_beside(worth, settled, len(rules.dscps))
    return min(rules.highest, chosen + _raised(job, rules))


def worth_of(registry: Registry, job: JobRecord, rule: str, done: Done) -> float | None:
    """By which jobs are ordered, the larger first; None if nothing is known of the job's traffic or length.

    By `intensity` the ratio of GPU time to time on the link, by `remaining` one over the GPU seconds that are left.
    """
    if rule == "remaining":
        if job.demand is None and job.speed is None:
            return None
        slots = len(job.slots) or job.count
        left_s = job.run_on_ns(slots, False, done(job)) * slots / 1e9
        return 1 / max(left_s, 1e-9)
    computing_ns, sending_ns = _iteration(registry, job)
    return len(job.slots) * computing_ns / sending_ns if sending_ns > 0 else None


def _iteration(registry: Registry, job: JobRecord) -> tuple[float, float]:
    """How long an iteration computes, and how long its traffic takes on the slowest link; 0 if that is not known."""
    if job.demand is not None:
        silent_ns = sum(phase.duration_ns for phase in job.demand.phases if not phase.bandwidth_bps)
        slowest_bps = min(registry.capacities_bps(job.links).values())
        return silent_ns, 1e9 * job.demand.bits / slowest_bps
    if job.speed is not None:
        computing_ns = job.speed.iteration_ns(1, True)
        return computing_ns, job.speed.iteration_ns(len(job.slots), False) - computing_ns
    return 0.0, 0.0


def _raised(job: JobRecord, rules: ClassRules) -> int:
    return int((job.placed_ns - job.submitted_ns) / 1e9 // rules.age_s)


def class_note(registry: Registry, job: JobRecord, rules: ClassRules, done: Done) -> str:
    """The class of a running job, and why it has it, in a line; empty if it has none."""
    if job.traffic_class is None:
        return ""
    number = min(job.traffic_class, rules.highest)
    text = f"traffic class {number} of 0 to {rules.highest}, DSCP {rules.dscps[number]}, "
    if rules.own_class(job.spec.environment) is not None:
        return f"{text}as its user has set it"
    worth = worth_of(registry, job, rules.rule, done)
    if worth is None:
        text += "the lowest: neither a profile nor a speed says what it sends"
    elif rules.rule == "remaining":
        text += f"by the {1 / worth:.3g} GPU seconds that it has left"
    else:
        text += f"by its GPU intensity of {worth:.3g}"
    raised = _raised(job, rules)
    return f"{text}, raised by {raised} for its age" if raised else text
