"""Approaches by name: a congestion control or rates of a daemon, with a placement, Cassini's time shifts and a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bench.compare.results.runs import FAIR, ISOLATED
from bench.lab.programs import Pacing
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.control.traffic_classes import CLASSES
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import (
    CASSINI,
    SHORT_NAME,
    OfModels,
    Vocabulary,
    control_name,
    names_models,
    parse_names,
    split_name,
)
from mltcp.core.quantities import parse_number
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, available
from mltcp.ebpf.jobs import control_for
from mltcp.ebpf.layout import KernelJob
from mltcp.pacing.rate_law import CONSTANTS
from placement.policies.catalogue import GATE_NAMES, communication_policy, placement_names

PACED = ("dcqcn", "mltcp_dcqcn")
"""Policies under which a daemon on every host sets the rates; the congestion control only keeps connections full."""

PACED_CONTROL = "reno"
PACED_INTERVAL_S = 0.002


@dataclass(frozen=True)
class Policy:
    """A congestion control with the parameters of its jobs, or the parameters by which every host's daemon paces them.

    ``isolated`` runs every job alone; it is the baseline of the others. Where ``models`` is not None, each job has the
    policy that this says, and the other fields are those of the first one.
    """

    name: str
    control: str
    law: KernelJob
    pacing: Pacing | None = None
    models: OfModels[Policy] | None = None

    @property
    def isolated(self) -> bool:
        """Whether the jobs run one at a time."""
        return self.name == ISOLATED

    @property
    def each(self) -> tuple[Policy, ...]:
        """The policies that jobs have under it."""
        return (self,) if self.models is None else tuple(policy for _, policy in self.models.parts)

    def of(self, jobs: Sequence[str]) -> list[Policy]:
        """The policy of each of these jobs.

        Raises:
            UsageError: one has none, or a part is of no job.
        """
        return [self] * len(jobs) if self.models is None else self.models.of(jobs)

    def job(self, name: str) -> KernelJob:
        """The entry of a job that runs under this policy."""
        return replace(self.law, name=name)


def parse_policy(text: str, isolated_control: str) -> Policy:
    """The policy of this name: a congestion control, ``isolated``, or one of ours with modifiers.

    Modifiers follow an ``@`` and are separated by colons: a shape of F, or one of ``start=``, ``decrease=``,
    ``increase=``, ``reference=``, ``slope=``, ``intercept=``, ``classes=``, ``fair=job``, ``per=iteration``; for
    example ``mltcp_reno@quadratic`` or ``mltcp_dctcp@start=keep:slope=3.5``. Paced policies accept ``base=CONTROL``,
    ``interval=SECONDS``, ``by=socket`` (without a daemon), the modifiers of F, and the constants of the rate law by
    their names.

    Raises:
        UsageError: an unknown policy or modifier.
    """
    part = Vocabulary("policy", tuple(allowed_policies()), modified=True).parse(text)
    base = control_name(part.base)
    # A shape brings its constants and its action, which the others change, wherever it stands.
    modifiers = sorted((modifier for modifier in part.modifiers if modifier), key=lambda text: "=" in text)
    if base in PACED:
        return _paced(base, modifiers, text)
    if modifiers and base not in MLTCP_CONTROLS:
        modified = ", ".join([*MLTCP_CONTROLS, *PACED])
        raise UsageError(f"policy: expected modifiers after {modified} only, got {text!r}")
    law = KernelJob("", Aggressiveness(Shape.LINEAR))
    for modifier in modifiers:
        law = _modified(law, modifier, text)
    return Policy(text, control_for(isolated_control if base == ISOLATED else base), law)


def parse_policies(text: str, isolated_control: str) -> Policy:
    """A policy as of `parse_policy`, or one for each model, such as ``vgg19=cubic+vgg19=mltcp_cubic@quadratic``.

    Raises:
        UsageError: an unknown policy or modifier, or a model that is to run isolated.
    """
    models = OfModels.parse(text, lambda each: parse_policy(each, isolated_control), "policy")
    if models is None:
        return parse_policy(text, isolated_control)
    first = models.parts[0][1]
    if any(policy.isolated for _, policy in models.parts):
        raise UsageError(f"policy {text!r}: expected a congestion control for each model, got {ISOLATED}")
    return Policy(text, first.control, first.law, first.pacing, models)


def allowed_policies() -> list[str]:
    """The policies that can be run on this host."""
    return list(dict.fromkeys([ISOLATED, *available(), "dctcp", *CONTROLS, SHORT_NAME, *PACED]))


def _paced(law: str, modifiers: Iterable[str], text: str) -> Policy:
    control, interval_s = PACED_CONTROL, PACED_INTERVAL_S
    job, constants, by_socket = KernelJob("", Aggressiveness(Shape.LINEAR)), [], False
    for modifier in modifiers:
        field, _, value = modifier.partition("=")
        if field == "base":
            control = control_for(value)
        elif field == "interval":
            interval_s = parse_number(value, field=f"policy {text!r}: {field}")
        elif modifier == "by=socket":
            by_socket = True
        elif field in CONSTANTS:
            constants.append((field, parse_number(value, field=f"policy {text!r}: {field}")))
        else:
            job = _modified(job, modifier, text)
    return Policy(
        text, control, job, Pacing(law, interval_s, job.aggressiveness, tuple(constants), by_socket)
    )


def _modified(law: KernelJob, modifier: str, text: str) -> KernelJob:
    field, equals, value = modifier.partition("=")
    f = law.aggressiveness
    if not equals:
        return replace(law, aggressiveness=Aggressiveness.from_name(field), action=None)

    def number() -> float:
        return parse_number(value, field=f"policy {text!r}: {field}")

    modifiers: dict[str, Callable[[], KernelJob]] = {
        "start": lambda: replace(law, action=replace(law.acts, start=_start(value, text))),
        "decrease": lambda: replace(law, action=replace(law.acts, decrease=number())),
        "increase": lambda: replace(law, action=replace(law.acts, increase=number())),
        "reference": lambda: replace(law, action=replace(law.acts, reference_s=number())),
        "classes": lambda: replace(law, action=replace(law.acts, classes=_classes(number(), text))),
        "slope": lambda: replace(law, aggressiveness=replace(f, slope=number())),
        "intercept": lambda: replace(law, aggressiveness=replace(f, intercept=number())),
        "fair": lambda: replace(law, action=replace(law.acts, fair=_chosen("fair", "job", value, text))),
        "per": lambda: replace(law, action=replace(law.acts, whole=_chosen("per", "iteration", value, text))),
    }
    if field not in modifiers:
        expected = ", ".join([*(f"{name}=" for name in modifiers), *(shape.label for shape in Shape)])
        raise UsageError(f"policy {text!r}: expected {expected}, got {modifier!r}")
    return modifiers[field]()


def _start(value: str, text: str) -> Start:
    try:
        return Start[value.upper()]
    except KeyError:
        starts = ", ".join(start.name.lower() for start in Start)
        raise UsageError(f"policy {text!r}: start: expected {starts}, got {value!r}") from None


def _chosen(field: str, expected: str, value: str, text: str) -> bool:
    if value != expected:
        raise UsageError(f"policy {text!r}: {field}: expected {expected}, got {value!r}")
    return True


def _classes(value: float, text: str) -> int:
    if value not in range(2, CLASSES + 1):
        raise UsageError(
            f"policy {text!r}: classes: expected a whole number from 2 to {CLASSES}, got {value:g}"
        )
    return int(value)


SCHEDULER_NAMES = Vocabulary("scheduler", ("themis", "pollux", *placement_names("[-K]")))


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
        """Whether every job runs alone: the baseline of the others."""
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
    if names_models(text):
        return Approach(text, parse_policies(text, control))
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
