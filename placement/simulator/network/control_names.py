"""Congestion controls of a network by their names, such as ``mltcp_dcqcn@both:slope=2``, alone and mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import blake2b

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import SHORT_NAME, OfModels, Vocabulary, control_name
from mltcp.core.quantities import parse_number
from placement.simulator.network.laws.network_law import DEFAULTS, Control, DcqcnState, NetworkLaw

MLTCP = "mltcp_"
"""Before the name of a control: F on it."""

CONTROL_NAMES = Vocabulary(
    "control",
    (*(prefix + control.label for control in Control for prefix in ("", MLTCP)), SHORT_NAME),
    modified=True,
)
_SCALED = {"increase": (True, False), "decrease": (False, True), "both": (True, True)}
_RECOVER = ("free_stages", 20.0)
_CHOICES = {"fair": "job", "per": "iteration"}


def parse_control(text: str) -> NetworkLaw:
    """The law of a name such as ``dcqcn``, ``mltcp_cubic`` or ``mltcp_dcqcn@remaining:both:slope=8``.

    Modifiers follow an @ and are separated by colons. Those of F: its shape, ``slope=``, ``intercept=``, and what it
    scales (increase, decrease, both). ``recover``, on DCQCN, is ``remaining:both:free_stages=20``. ``fair=job``: the
    flows that a host sends for a job grow together like one. ``per=iteration``: bytes_ratio is that of the iteration,
    and not of the burst. Any other ``name=number`` is a constant of the control; ``timer=100us`` is ``timer_us=100``,
    and DCQCN's state may be named (`DcqcnState`): ``state=ns3``.

    Raises:
        UsageError: no such control or modifier.
    """
    part = CONTROL_NAMES.parse(text)
    base = control_name(part.base)
    control = Control[base.removeprefix(MLTCP).upper()]
    is_scaled = base.startswith(MLTCP)
    law = NetworkLaw(control, Aggressiveness() if is_scaled else Aggressiveness(Shape.ONE))
    # A shape brings its constants, which the others change, wherever it stands.
    for modifier in sorted(part.modifiers, key=lambda each: "=" in each):
        law = _modified(law, modifier, is_scaled, text)
    return law


def _modified(law: NetworkLaw, modifier: str, is_scaled: bool, text: str) -> NetworkLaw:
    name, equals, value = modifier.partition("=")
    where = f"control {text!r}: {name}"
    if not equals or name in ("slope", "intercept"):
        if not is_scaled:
            raise UsageError(f"{where}: expected F only after {MLTCP}{law.control.label}")
        if name == "recover":
            f, constants = Aggressiveness.of_shape(Shape.REMAINING), (*law.constants, _RECOVER)
            return replace(law, aggressiveness=f, increase=True, decrease=True, constants=constants)
        if name in _SCALED:
            increase, decrease = _SCALED[name]
            return replace(law, increase=increase, decrease=decrease)
        if not equals:
            return replace(law, aggressiveness=Aggressiveness.from_name(name))
        f, number = law.aggressiveness, parse_number(value, field=where)
        changed = replace(f, slope=number) if name == "slope" else replace(f, intercept=number)
        return replace(law, aggressiveness=changed)
    if name in _CHOICES:
        if value != _CHOICES[name]:
            raise UsageError(f"{where}: expected {_CHOICES[name]}, got {shown(value)}")
        return replace(law, fair=law.fair or name == "fair", whole=law.whole or name == "per")
    return replace(law, constants=(*law.constants, _constant(law.control, name, value, where)))


def _constant(control: Control, name: str, value: str, where: str) -> tuple[str, float]:
    if control is Control.DCQCN and name == "state" and value.upper() in DcqcnState.__members__:
        return name, float(DcqcnState[value.upper()])
    if value.endswith("us") and f"{name}_us" in DEFAULTS[control]:
        name, value = f"{name}_us", value.removesuffix("us")
    return name, parse_number(value, field=where)


# -- a law for each job ------------------------------------------------------------------------------------------------

_BY_HOST = ":hosts="


@dataclass(frozen=True)
class ModelControls:
    """A control for each model, as `OfModels` says."""

    models: OfModels[NetworkLaw]

    def laws(self, jobs: Sequence[str], seed: int = 0) -> list[NetworkLaw]:
        """The control of each job; the seed has no meaning.

        Raises:
            UsageError: a job without a law, or a part without a job.
        """
        return self.models.of(jobs)

    def host_laws(self, hosts: Sequence[str], seed: int) -> dict[str, NetworkLaw]:
        """None: it is by job."""
        return {}


@dataclass(frozen=True)
class ControlMix:
    """Which jobs, or hosts, have which control, where not all have the same.

    Attributes:
        others: the control of all that no part has.
        parts: controls before it, each with the share of all jobs that have it, or a pattern of their names.
        by_host: whether it is hosts of which these are shares and patterns: a flow has the control of its sender.
    """

    others: NetworkLaw
    parts: tuple[tuple[float | str, NetworkLaw], ...] = ()
    by_host: bool = False

    def laws(self, jobs: Sequence[str], seed: int) -> list[NetworkLaw]:
        """The control of each job; where it is by host, the last one."""
        return [self.others] * len(jobs) if self.by_host else self._laws(jobs, seed)

    def host_laws(self, hosts: Sequence[str], seed: int) -> dict[str, NetworkLaw]:
        """The control of each host; none where it is by job."""
        return dict(zip(hosts, self._laws(hosts, seed), strict=True)) if self.by_host else {}

    def _laws(self, names: Sequence[str], seed: int) -> list[NetworkLaw]:
        """The control of each name.

        A pattern takes its names first; shares take of the others, in an order drawn by the seed. The order does not
        depend on the shares: with a larger one, a name that had the control keeps it.
        """
        found: dict[str, NetworkLaw] = {}
        for pattern, law in self.parts:
            if isinstance(pattern, str):
                found |= {name: law for name in names if name not in found and fnmatchcase(name, pattern)}
        drawn = sorted((name for name in names if name not in found), key=lambda name: _drawn(seed, name))
        for share, law in self.parts:
            if not isinstance(share, str):
                count = round(share * len(names))
                found |= dict.fromkeys(drawn[:count], law)
                drawn = drawn[count:]
        return [found.get(name, self.others) for name in names]


def parse_controls(text: str) -> ControlMix | ModelControls:
    """The controls of a text: of all jobs, mixed, or of each model.

    ``CONTROL:WHICH+...+CONTROL``, such as ``mltcp_dcqcn:0.5+dcqcn``, mixes them: WHICH is the share of all jobs that
    have the control, or a pattern of their names (``mltcp_dcqcn:vgg16-*+dcqcn``); after ``hosts=`` either is of the
    hosts that send with it (``mltcp_dcqcn:hosts=0.5+dcqcn``). ``MODEL=CONTROL+MODEL=CONTROL`` gives each model its own
    (`ModelControls`).

    Raises:
        UsageError: no such control, a part before the last one without WHICH, or parts of several kinds.
    """
    models = OfModels.parse(text, parse_control, "control")
    if models is not None:
        return ModelControls(models)
    *before, others = text.split("+")
    parts: list[tuple[float | str, NetworkLaw]] = []
    by_host = [_BY_HOST in part for part in before]
    for part in before:
        name, colon, which = part.replace(_BY_HOST, ":").rpartition(":")
        if not colon or not which or any(by_host) != all(by_host):
            raise UsageError(
                f"control {text!r}: expected CONTROL:SHARE or CONTROL:JOBS before a +, "
                f"or CONTROL:hosts=SHARE or CONTROL:hosts=HOSTS before each, got {shown(part)}"
            )
        is_share = which[0].isdigit() or which[0] in ".-"
        where = f"control {text!r}: share"
        parts.append(
            (
                parse_number(which, field=where, lowest=0, highest=1) if is_share else which,
                parse_control(name),
            )
        )
    if sum(share for share, _ in parts if not isinstance(share, str)) > 1:
        raise UsageError(f"control {text!r}: expected shares of at most 1 together")
    return ControlMix(parse_control(others), tuple(parts), any(by_host))


def split_controls(name: str) -> tuple[str, str]:
    """The policy and the controls of a name such as ``themis+cassini+mltcp_dcqcn:0.5+dcqcn``."""
    parts = name.split("+")
    first = next(
        (place for place, part in enumerate(parts) if CONTROL_NAMES.find(part.partition(":")[0])),
        len(parts) - 1,
    )
    return "+".join(parts[:first]), "+".join(parts[first:])


def _drawn(seed: int, job: str) -> bytes:
    return blake2b(f"control {seed} {job}".encode(), digest_size=8).digest()
