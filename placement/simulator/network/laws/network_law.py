"""A congestion control in a network, and F on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import check_number


class Control(IntEnum):
    """A congestion control."""

    RENO = 0
    CUBIC = 1
    DCTCP = 2
    DCQCN = 3
    DELAY = 4
    CONSTANT = 5


class DcqcnState(IntEnum):
    """What DCQCN remembers, its constant `state`: it decides whether equal jobs part by themselves."""

    PAPER = 0
    """Line rate and alpha = 1 when an iteration begins; alpha decays from then on (SIGCOMM 2015)."""
    FIRST_CNP = 1
    """As PAPER, but alpha and the timers wait for the first CNP of the iteration, as in NICs."""
    KEPT = 2
    """Rate and alpha go on over pauses."""
    NS3 = 3
    """As ns-3's model of a NIC: FIRST_CNP, no byte counter, cuts at fixed times, which keep the target if no increase
    came between them, and hyper increase from the sixth timer on."""


_WINDOW = {
    "packet_bytes": 1514.0,  # on the wire
    "rto_us": 200e3,
    "idle_restart": 1.0,  # whether the window shrinks over a pause longer than rto_us, as in Linux
    "increase_limit": 0.0,  # of F on the increase; 0: none
}

DEFAULTS: Mapping[Control, Mapping[str, float]] = {
    Control.RENO: _WINDOW,
    Control.CUBIC: {**_WINDOW, "hystart": 1.0, "recent_jiffies": 8.0},  # HZ / 32 at 250 Hz; 0 for RFC 9438
    Control.DCTCP: _WINDOW,
    # Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015.
    Control.DCQCN: {
        "packet_bytes": 1000.0,
        "state": float(DcqcnState.FIRST_CNP),
        "g": 1 / 256,
        "cnp_us": 50.0,  # at most one in that time
        "alpha_timer_us": 55.0,
        "timer_us": 55.0,
        "counter_bytes": 10e6,
        "stages": 5.0,
        "ai_bps": 40e6,
        "hai_bps": 400e6,
        "lowest_bps": 10e6,
        "increase_limit": 0.0,
    },
    # Kumar et al., Swift, SIGCOMM 2020: without its scaling of the target by hops and flows.
    Control.DELAY: {
        **_WINDOW,
        "target_us": 25.0,  # of queueing
        "ai_packets": 1.0,
        "beta": 0.8,
        "largest_decrease": 0.5,
    },
    Control.CONSTANT: {"packet_bytes": 1514.0, "rate_bps": 1e9},
}
"""The constants of each control: the published ones, or Linux's."""


@dataclass(frozen=True)
class NetworkLaw:
    """A congestion control, with F on its increase, its decrease or both.

    Attributes:
        control: the base.
        aggressiveness: F; its shape ONE is the base itself.
        increase: whether F scales the increase; `decrease`: whether it divides the decrease.
        constants: of the control, by name, where they differ from `DEFAULTS`.

    Raises:
        UsageError: a constant that the control does not have, or a value below 0.
    """

    control: Control
    aggressiveness: Aggressiveness = field(default_factory=lambda: Aggressiveness(Shape.ONE))
    increase: bool = True
    decrease: bool = False
    constants: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        allowed = DEFAULTS[self.control]
        for name, value in self.constants:
            if name not in allowed:
                raise UsageError(f"constants: expected one of {', '.join(allowed)}, got {shown(name)}")
            check_number(value, field=name, lowest=0)
            if name in ("packet_bytes", "timer_us", "alpha_timer_us", "cnp_us") and value <= 0:
                raise UsageError(f"{name}: expected a number above 0, got {value:g}")

    @property
    def values(self) -> Mapping[str, float]:
        """All constants of the control."""
        return {**DEFAULTS[self.control], **dict(self.constants)}
