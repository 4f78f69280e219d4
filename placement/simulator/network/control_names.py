"""Congestion controls of a network by their names, such as ``mltcp_dcqcn@both:slope=2``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import Vocabulary
from mltcp.core.quantities import parse_number
from placement.simulator.network.laws.network_law import DEFAULTS, Control, DcqcnState, NetworkLaw

MLTCP = "mltcp_"
"""Before the name of a control: F on it."""

CONTROL_NAMES = Vocabulary(
    "control",
    tuple(prefix + control.name.lower() for control in Control for prefix in ("", MLTCP)),
    modified=True,
)
_SCALED = {"increase": (True, False), "decrease": (False, True), "both": (True, True)}


def parse_control(text: str) -> NetworkLaw:
    """The law of a name such as ``dcqcn``, ``mltcp_cubic`` or ``mltcp_dcqcn@remaining:both:slope=8``.

    Modifiers follow an @ and are separated by colons. Those of F: its shape, ``slope=``, ``intercept=``, and what it
    scales (increase, decrease, both). Any other ``name=number`` is a constant of the control; ``timer=100us`` is
    ``timer_us=100``, and DCQCN's state may be named (`DcqcnState`): ``state=ns3``.

    Raises:
        UsageError: no such control or modifier.
    """
    part = CONTROL_NAMES.parse(text)
    control = Control[part.base.removeprefix(MLTCP).upper()]
    is_scaled = part.base.startswith(MLTCP)
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
            raise UsageError(f"{where}: expected F only after {MLTCP}{law.control.name.lower()}")
        if name in _SCALED:
            increase, decrease = _SCALED[name]
            return replace(law, increase=increase, decrease=decrease)
        if not equals:
            return replace(law, aggressiveness=Aggressiveness.from_name(name))
        f, number = law.aggressiveness, parse_number(value, field=where)
        changed = replace(f, slope=number) if name == "slope" else replace(f, intercept=number)
        return replace(law, aggressiveness=changed)
    return replace(law, constants=(*law.constants, _constant(law.control, name, value, where)))


def _constant(control: Control, name: str, value: str, where: str) -> tuple[str, float]:
    if control is Control.DCQCN and name == "state" and value.upper() in DcqcnState.__members__:
        return name, float(DcqcnState[value.upper()])
    if value.endswith("us") and f"{name}_us" in DEFAULTS[control]:
        name, value = f"{name}_us", value.removesuffix("us")
    return name, parse_number(value, field=where)


# -- a law for each job ------------------------------------------------------------------------------------------------

_OF_MODEL = re.compile(r"([^@+=]+)=(.+)")


def job_laws(text: str, jobs: Sequence[str]) -> tuple[NetworkLaw, ...]:
    """The law of each job: the same of all, or its own of ``MODEL=LAW+MODEL=LAW``.

    A part is of a job whose name begins with MODEL and a dash, whatever the case of its letters. Several parts of a
    model are of such jobs one after the other, in their order; the last of them also of all that follow.

    Args:
        text: a control (`parse_control`), or several for models.
        jobs: their names.

    Raises:
        UsageError: no such control, a job without a law, or a part without a job.
    """
    parts = text.split("+")
    found = [_OF_MODEL.fullmatch(part) for part in parts]
    if len(parts) == 1 and found[0] is None:
        return (parse_control(text),) * len(jobs)
    queues: dict[str, list[NetworkLaw]] = {}
    for part, match in zip(parts, found, strict=True):
        if match is None:
            raise UsageError(f"control {shown(text)}: expected MODEL=LAW joined by +, got {shown(part)}")
        queues.setdefault(match[1].lower(), []).append(parse_control(match[2]))
    named = [_model_of(job, queues, text) for job in jobs]
    for model, laws in queues.items():
        if named.count(model) < len(laws):
            raise UsageError(
                f"control {shown(text)}: {model}: expected {len(laws)} jobs, got {named.count(model)}"
            )
    return tuple(queues[model].pop(0) if len(queues[model]) > 1 else queues[model][0] for model in named)


def _model_of(job: str, models: Iterable[str], text: str) -> str:
    """The longest of these models with which the job's name begins."""
    name = f"{job.lower()}-"
    matching = [model for model in models if name.startswith(f"{model}-")]
    if not matching:
        raise UsageError(f"control {shown(text)}: expected a law for job {shown(job)}, got none")
    return max(matching, key=len)
