"""The laws of the model: a base congestion control, and F on its increase, its decrease and its first window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from mltcp.control.aggressiveness import LARGEST_FACTOR, Aggressiveness, Shape, Start
from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number

LEARNING_ITERATIONS = 2
"""The number of iterations that the tracker needs until F is in force (mltcp/control/iteration.py)."""

ONE = Aggressiveness(Shape.ONE)
"""F of an unmodified base."""


class Base(IntEnum):
    """The congestion control that a law modifies."""

    RENO = 0
    CUBIC = 1
    DCTCP = 2

    @property
    def label(self) -> str:
        """The name in lower case."""
        return self.name.lower()


@dataclass(frozen=True)
class WindowLaw:
    """A congestion control as it is in `mltcp/ebpf`: the fields of its `struct law`, and the base.

    `decrease` is d of the decrease that is divided by 1 - d + d * max(1, F), `increase` the largest F on the increase
    (0: no limit), `reference_s` the time by whose ratio to the sending time F is scaled (0: not scaled). Raises
    UsageError for values out of range.
    """

    base: Base
    aggressiveness: Aggressiveness = ONE
    start: Start = Start.AVOID
    decrease: float = 0.0
    increase: float = 0.0
    reference_s: float = 0.0
    learning_iterations: int = LEARNING_ITERATIONS

    def __post_init__(self) -> None:
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
    def unmodified(cls, base: Base) -> WindowLaw:
        """The base itself: F is 1."""
        return cls(base, start=Start.KERNEL)

    @classmethod
    def paper(cls, base: Base) -> WindowLaw:
        """The paper's F, 1.75 bytes_ratio + 0.25, on the increase."""
        return cls(base, Aggressiveness())

    @classmethod
    def remaining(cls, base: Base, increase: float = 4.0, highest: float = 16.0) -> WindowLaw:
        """F by what remains to be sent, 1 / (3 (1 - bytes_ratio)^2), scaled by the square root of 0.1 s / sending time.

        It is at most `highest` on the decrease and at most `increase` on the increase; the defaults are the kernel's.
        """
        intercept = 1 / 3
        f = Aggressiveness(Shape.REMAINING, highest - intercept, intercept)
        return cls(base, f, Start.PROBE, decrease=1.0, increase=increase, reference_s=0.1)

    def with_known_iterations(self) -> WindowLaw:
        """The same law with F in force from the first iteration on."""
        return replace(self, learning_iterations=0)
