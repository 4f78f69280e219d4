"""The family of functions F(bytes_ratio) by which MLTCP scales a congestion control's increase step.

Each function exists twice: in floating point, for models, and in the unsigned fixed-point form (Q16: the value
times 65536) of the eBPF congestion controls. The codes of `Shape` and the order of the operations in
`Aggressiveness.fixed`, `ratio_q16` and `scale_acked` are the same in `mltcp/ebpf/law.bpf.h`: change both
together.

Source: MLTCP, arXiv 2402.09589, the aggressiveness function and its requirements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import check_number

ONE_Q16 = 1 << 16
"""The number 1 in Q16."""

DEFAULT_SLOPE = 1.75
DEFAULT_INTERCEPT = 0.25

LARGEST_FACTOR = 64.0
"""The largest F: far above any useful one, and small enough that no product overflows 64 bits."""

SMALLEST_INTERCEPT = 1 / ONE_Q16
"""The smallest intercept that is not 0 in Q16; with 0 a window would never grow."""


class Shape(IntEnum):
    """The shape of F, by the codes of the eBPF programs.

    With slope s, intercept i and x = bytes_ratio. The increasing shapes go from i to s + i, the falling ones
    from s + i to i.
    """

    ONE = 0
    """1: the base congestion control, unchanged."""
    LINEAR = 1
    """s x + i: the paper's choice."""
    QUADRATIC = 2
    """s x^2 + i"""
    RECIPROCAL = 3
    """1 / (1/i - (1/i - 1/(s+i)) x); with the paper's constants 1 / (4 - 3.5 x)."""
    CONCAVE = 4
    """-s x^2 + 2 s x + i"""
    FALLING_LINEAR = 5
    """(s + i) - s x: does not let jobs interleave; for the ablation."""
    FALLING_QUADRATIC = 6
    """(s + i) - s x^2: does not let jobs interleave; for the ablation."""
    REMAINING = 7
    """min(s + i, i / (1 - x)^2): by what remains to be sent (docs/ebpf.md)."""

    @property
    def label(self) -> str:
        """The name of this shape on the command line: `linear`, `falling_quadratic`, ..."""
        return self.name.lower()

    @classmethod
    def from_name(cls, name: str) -> Shape:
        """The shape with this label; raises UsageError if there is none."""
        for shape in cls:
            if shape.label == name:
                return shape
        allowed = ", ".join(shape.label for shape in cls)
        raise UsageError(f"function: expected one of {allowed}, got {shown(name)}")


_REMAINING_INTERCEPT = 1 / 3
_REMAINING_TOP = 16.0


def default_constants(shape: Shape) -> tuple[float, float]:
    """The slope and the intercept of a shape that is chosen without them: the paper's, for its family of shapes.

    With those of `remaining` the mean of 1/F over an iteration is 1, so that beside ordinary traffic an iteration takes
    about as long as with F = 1.
    """
    if shape is Shape.REMAINING:
        return _REMAINING_TOP - _REMAINING_INTERCEPT, _REMAINING_INTERCEPT
    return DEFAULT_SLOPE, DEFAULT_INTERCEPT


_REAL: dict[Shape, Callable[[float, float, float], float]] = {
    Shape.ONE: lambda x, s, i: 1.0,
    Shape.LINEAR: lambda x, s, i: s * x + i,
    Shape.QUADRATIC: lambda x, s, i: s * x * x + i,
    Shape.RECIPROCAL: lambda x, s, i: i * (s + i) / ((s + i) - s * x),
    Shape.CONCAVE: lambda x, s, i: s * x * (2 - x) + i,
    Shape.FALLING_LINEAR: lambda x, s, i: (s + i) - s * x,
    Shape.FALLING_QUADRATIC: lambda x, s, i: (s + i) - s * x * x,
    Shape.REMAINING: lambda x, s, i: min(s + i, i / (1 - x) ** 2) if x < 1 else s + i,
}

_FIXED: dict[Shape, Callable[[int, int, int], int]] = {
    Shape.ONE: lambda x, s, i: ONE_Q16,
    Shape.LINEAR: lambda x, s, i: ((s * x) >> 16) + i,
    Shape.QUADRATIC: lambda x, s, i: ((s * ((x * x) >> 16)) >> 16) + i,
    Shape.RECIPROCAL: lambda x, s, i: (i * (s + i)) // ((s + i) - ((s * x) >> 16)),
    Shape.CONCAVE: lambda x, s, i: ((s * (2 * x - ((x * x) >> 16))) >> 16) + i,
    Shape.FALLING_LINEAR: lambda x, s, i: (s + i) - ((s * x) >> 16),
    Shape.FALLING_QUADRATIC: lambda x, s, i: (s + i) - ((s * ((x * x) >> 16)) >> 16),
    Shape.REMAINING: lambda x, s, i: min(s + i, (i << 32) // (ONE_Q16 - x) ** 2) if x < ONE_Q16 else s + i,
}


@dataclass(frozen=True)
class Aggressiveness:
    """One F: a shape with its slope and intercept (both dimensionless).

    Raises UsageError unless slope >= 0, intercept >= 1/65536 and slope + intercept <= 64.
    """

    shape: Shape = Shape.LINEAR
    slope: float = DEFAULT_SLOPE
    intercept: float = DEFAULT_INTERCEPT

    def __post_init__(self) -> None:
        check_number(self.slope, field="slope", lowest=0, highest=LARGEST_FACTOR)
        check_number(self.intercept, field="intercept", lowest=SMALLEST_INTERCEPT, highest=LARGEST_FACTOR)
        if self.slope + self.intercept > LARGEST_FACTOR:
            raise UsageError(
                f"slope + intercept: expected at most {LARGEST_FACTOR:g}, got {self.slope + self.intercept:g}"
            )

    @classmethod
    def of_shape(cls, shape: Shape, slope: float | None = None, intercept: float | None = None) -> Self:
        """The F of this shape; constants that are None have the shape's defaults."""
        default_slope, default_intercept = default_constants(shape)
        return cls(
            shape,
            default_slope if slope is None else slope,
            default_intercept if intercept is None else intercept,
        )

    @classmethod
    def from_name(cls, name: str, slope: float | None = None, intercept: float | None = None) -> Self:
        """The F whose shape has this label; raises UsageError if there is none."""
        return cls.of_shape(Shape.from_name(name), slope, intercept)

    def __call__(self, bytes_ratio: float) -> float:
        """F(bytes_ratio), with the ratio clamped to [0, 1]."""
        return _REAL[self.shape](min(1.0, max(0.0, bytes_ratio)), self.slope, self.intercept)

    def fixed(self, ratio_q16: int) -> int:
        """F in Q16 of a bytes_ratio in Q16 (0 to 65536), in the integer arithmetic of the eBPF code.

        Every intermediate value fits 64 unsigned bits. With the paper's constants the result is less than
        3 units of Q16 from the exact value (9 for `reciprocal`), and exact at both ends.
        """
        return _FIXED[self.shape](ratio_q16, self.slope_q16, self.intercept_q16)

    @property
    def slope_q16(self) -> int:
        """The slope in Q16, rounded to the nearest."""
        return round(self.slope * ONE_Q16)

    @property
    def intercept_q16(self) -> int:
        """The intercept in Q16, rounded to the nearest."""
        return round(self.intercept * ONE_Q16)

    @property
    def increasing(self) -> bool:
        """Whether F grows with bytes_ratio, the condition for jobs to interleave."""
        return self(1.0) > self(0.0)


def ratio_q16(acked_bytes: int, total_bytes: int) -> int:
    """min(1, acked_bytes / total_bytes) in Q16; 0 where total_bytes is 0 (unknown).

    The shift stays within 64 bits for counts below 2^48 bytes.
    """
    if total_bytes == 0:
        return 0
    return min(ONE_Q16, (acked_bytes << 16) // total_bytes)


def scale_acked(acked: int, f_q16: int, carry: int) -> tuple[int, int]:
    """F * acked, rounded down, and the fraction (Q16, below 65536) to carry into the next call.

    Start with carry 0. Because the fraction is carried, the sum over many calls loses less than 1; with F = 1
    every call returns `acked` itself, so the base congestion control is reproduced exactly.
    """
    scaled_q16 = carry + acked * f_q16
    return scaled_q16 >> 16, scaled_q16 & (ONE_Q16 - 1)


def shared_factor(f_q16: int, flows: int) -> int:
    """The factor in Q16 on the increase of each of so many flows of a job, which grow together like one; at least 1.

    The increase of each is divided by the square of their number: the coupled increase of RFC 6356 (section 3, equation
    1) for flows of equal windows and round trips. Where flows lose as often as they send, the rate of a flow is as the
    root of its increase, so that all together have the rate of one.
    """
    return max(1, f_q16 // flows**2) if flows > 1 else f_q16


class Start(IntEnum):
    """The window with which the first bytes of an iteration are sent."""

    KERNEL = 0
    """The kernel's: a small window after an idle period, then slow start."""
    AVOID = 1
    """The kernel's small window, which grows by F from the first byte, without slow start."""
    KEEP = 2
    """The window from before the idle period, and congestion avoidance from the first byte."""
    PROBE = 3
    """Four packets, then slow start up to three quarters of the former window or the first congestion signal."""
    LOOK = 4
    """As PROBE, but two packets and no slow start where the first round trip shows the queue of others."""
