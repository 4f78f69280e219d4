"""Congestion controls of a network by their names, such as ``mltcp_dcqcn@both:slope=2``."""

from __future__ import annotations

from dataclasses import replace

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary
from mltcp.core.quantities import parse_number
from placement.simulator.network.laws.network_law import Control, NetworkLaw

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
    scales (increase, decrease, both). Any other ``name=number`` is a constant of the control.

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
    return replace(law, constants=(*law.constants, (name, parse_number(value, field=where))))
