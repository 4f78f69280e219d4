"""A congestion control, and F on it: in a network (`NetworkLaw`), and in the model of one link (`WindowLaw`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

from mltcp.control.aggressiveness import LARGEST_FACTOR, Aggressiveness, Shape, Start
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

    @property
    def label(self) -> str:
        """The name in lower case."""
        return self.name.lower()


WINDOW_CONTROLS = (Control.RENO, Control.CUBIC, Control.DCTCP)
"""Those with windows in whole packets, as in Linux; the model of one link (`run`) has them alone."""


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
    "rack": 1.0,  # whether lost retransmissions are found without a time-out, as in Linux; 0: as in ns-3
    "buffer_bytes": 8388608.0,  # of a socket: so far a flow gets beyond a packet that waits for its time-out
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
        "free_stages": 0.0,  # timers without a cut after which F holds back no more; 0: never
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
    Control.CONSTANT: {"packet_bytes": 1514.0, "rate_bps": inf},  # its NIC's
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
        fair: whether the flows that a host sends for a job grow together like one: the increase of each is divided by
            the square of their number (mltcp_shared() in law.bpf.h, which has the reason).
        reference_s: F is multiplied by the root of this over the time that a burst takes alone, within 1/4 and 4, in
            the shape `remaining`; 0: it is not. The mode `steps` alone has it.
        whole: whether bytes_ratio is that of the whole iteration, and not of its present burst (bursts.py).

    Raises:
        UsageError: a constant that the control does not have, a value below 0, or `fair` without a window in packets.
    """

    control: Control
    aggressiveness: Aggressiveness = field(default_factory=lambda: Aggressiveness(Shape.ONE))
    increase: bool = True
    decrease: bool = False
    constants: tuple[tuple[str, float], ...] = ()
    fair: bool = False
    whole: bool = False
    reference_s: float = 0.0

    def __post_init__(self) -> None:
        if self.fair and self.control not in WINDOW_CONTROLS:
            expected = ", ".join(each.label for each in WINDOW_CONTROLS)
            raise UsageError(f"fair: expected one of {expected} with it, got {self.control.label}")
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


# -- the model of one link ---------------------------------------------------------------------------------------------

LEARNING_ITERATIONS = 2
"""The number of iterations that the tracker needs until F is in force (mltcp/control/iteration.py)."""


@dataclass(frozen=True)
class WindowLaw:
    """A congestion control as it is in `mltcp/ebpf`: the fields of its `struct law`, and the base.

    `decrease` is d of the decrease that is divided by 1 - d + d * max(1, F), `increase` the largest F on the increase
    (0: no limit), `reference_s` the time by whose ratio to the sending time F is scaled (0: not scaled). With `whole`,
    bytes_ratio is that of the iteration and not of its present burst. Raises UsageError for values out of range.
    """

    base: Control
    aggressiveness: Aggressiveness = field(default_factory=lambda: Aggressiveness(Shape.ONE))
    start: Start = Start.AVOID
    decrease: float = 0.0
    increase: float = 0.0
    reference_s: float = 0.0
    learning_iterations: int = LEARNING_ITERATIONS
    whole: bool = False

    def __post_init__(self) -> None:
        if self.base not in WINDOW_CONTROLS:
            raise UsageError(f"base: expected reno, cubic or dctcp, got {self.base.label}")
        if self.start is Start.LOOK:
            raise UsageError("start: expected one that the model has, got look")
        check_number(self.decrease, field="decrease", lowest=0, highest=1)
        check_number(self.increase, field="increase", lowest=0, highest=LARGEST_FACTOR)
        check_number(self.reference_s, field="reference_s", lowest=0, highest=60)
        if self.learning_iterations < 0:
            raise UsageError(
                f"learning_iterations: expected a number of at least 0, got {self.learning_iterations}"
            )

    @classmethod
    def unmodified(cls, base: Control) -> WindowLaw:
        """The base itself: F is 1."""
        return cls(base, start=Start.KERNEL)

    @classmethod
    def paper(cls, base: Control) -> WindowLaw:
        """The paper's F, 1.75 bytes_ratio + 0.25, on the increase."""
        return cls(base, Aggressiveness())

    @classmethod
    def remaining(cls, base: Control, increase: float = 4.0, highest: float = 16.0) -> WindowLaw:
        """F by what remains to be sent, 1 / (3 (1 - bytes_ratio)^2), scaled by the square root of 0.1 s / sending time.

        It is at most `highest` on the decrease and at most `increase` on the increase; the defaults are the kernel's.
        """
        intercept = 1 / 3
        f = Aggressiveness(Shape.REMAINING, highest - intercept, intercept)
        return cls(base, f, Start.PROBE, decrease=1.0, increase=increase, reference_s=0.1)

    def with_known_iterations(self) -> WindowLaw:
        """The same law with F in force from the first iteration on."""
        return replace(self, learning_iterations=0)
