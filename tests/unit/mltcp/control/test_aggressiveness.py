import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import (
    ONE_Q16,
    Aggressiveness,
    Shape,
    default_constants,
    ratio_q16,
    scale_acked,
)
from mltcp.core.errors import UsageError

SHAPES = [shape for shape in Shape if shape is not Shape.ONE]
INCREASING = [Shape.LINEAR, Shape.QUADRATIC, Shape.RECIPROCAL, Shape.CONCAVE, Shape.REMAINING]
FALLING = [Shape.FALLING_LINEAR, Shape.FALLING_QUADRATIC]
EVERY_RATIO = range(ONE_Q16 + 1)

# How far, in units of Q16, the fixed form may lie below and above the exact value with the paper's constants
# (which are themselves exact in Q16): each floor costs less than 1, the floor of x^2 is multiplied by the
# slope, and the floor in reciprocal's denominator by at most 2 / 0.25.
ERROR_Q16 = {
    Shape.LINEAR: (-1, 0),
    Shape.QUADRATIC: (-2.75, 0),
    Shape.RECIPROCAL: (-9, 0),
    Shape.CONCAVE: (-1, 1.75),
    Shape.FALLING_LINEAR: (0, 1),
    Shape.FALLING_QUADRATIC: (0, 2.75),
    Shape.REMAINING: (-1, 0),
}


def test_codes_are_those_of_the_ebpf_code():
    assert {shape.label: int(shape) for shape in Shape} == {
        "one": 0,
        "linear": 1,
        "quadratic": 2,
        "reciprocal": 3,
        "concave": 4,
        "falling_linear": 5,
        "falling_quadratic": 6,
        "remaining": 7,
    }


@pytest.mark.parametrize(
    ("shape", "at_half"),
    [
        (Shape.ONE, 1.0),
        (Shape.LINEAR, 1.125),
        (Shape.QUADRATIC, 0.6875),
        (Shape.RECIPROCAL, 1 / (4 - 1.75)),
        (Shape.CONCAVE, 1.5625),
        (Shape.FALLING_LINEAR, 1.125),
        (Shape.FALLING_QUADRATIC, 1.5625),
        (Shape.REMAINING, 1.0),
    ],
)
def test_half_way(shape, at_half):
    f = Aggressiveness(shape)
    assert f(0.5) == pytest.approx(at_half, rel=1e-15)
    assert f.fixed(ONE_Q16 // 2) == pytest.approx(at_half * ONE_Q16, abs=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_ends_are_exact(shape):
    f = Aggressiveness(shape)
    low, high = (0.25, 2.0) if shape in INCREASING else (2.0, 0.25)
    assert (f(0.0), f(1.0)) == (low, high)
    assert (f.fixed(0), f.fixed(ONE_Q16)) == (low * ONE_Q16, high * ONE_Q16)
    assert (f(-1.0), f(3.0)) == (low, high)


@pytest.mark.parametrize("shape", SHAPES)
def test_fixed_against_real_over_the_whole_range(shape):
    f = Aggressiveness(shape)
    below, above = ERROR_Q16[shape]
    errors = [f.fixed(x) - f(x / ONE_Q16) * ONE_Q16 for x in EVERY_RATIO]
    assert below - 1e-9 < min(errors)
    assert max(errors) < above + 1e-9


@pytest.mark.parametrize("shape", INCREASING)
def test_increasing_shapes_never_fall(shape):
    values = [Aggressiveness(shape).fixed(x) for x in EVERY_RATIO]
    assert all(a <= b for a, b in pairwise(values))
    assert Aggressiveness(shape).increasing
    assert not Aggressiveness(shape, slope=0).increasing


@pytest.mark.parametrize("shape", FALLING)
def test_falling_shapes_never_rise(shape):
    values = [Aggressiveness(shape).fixed(x) for x in EVERY_RATIO]
    assert all(a >= b for a, b in pairwise(values))
    assert not Aggressiveness(shape).increasing


def test_one_is_one_everywhere():
    f = Aggressiveness(Shape.ONE, slope=3, intercept=2)
    assert {f.fixed(x) for x in EVERY_RATIO} == {ONE_Q16}
    assert f(0.3) == 1.0
    assert not f.increasing


@st.composite
def constants(draw):
    intercept = draw(st.floats(1 / 64, 8))
    return draw(st.floats(0, 64 - intercept)), intercept


def allowed_error_q16(f, x):
    """Floors (1 each, times slope after a square), and half a unit from rounding each of the constants."""
    if f.shape is Shape.RECIPROCAL:
        s, i = f.slope_q16, f.intercept_q16
        denominator = s + i - s * x / ONE_Q16
        relative = 0.5 / i + 1 / (s + i) + 2 / denominator
        return 1 + 1.01 * relative * f(x / ONE_Q16) * ONE_Q16
    if f.shape is Shape.REMAINING:
        return 2 + 0.51 / f.intercept_q16 * f(x / ONE_Q16) * ONE_Q16
    return 2 + (0 if f.shape in (Shape.LINEAR, Shape.FALLING_LINEAR) else f.slope)


@given(st.sampled_from(SHAPES), constants(), st.integers(0, ONE_Q16))
def test_fixed_against_real_for_other_constants(shape, constants, x):
    f = Aggressiveness(shape, *constants)
    assert abs(f.fixed(x) - f(x / ONE_Q16) * ONE_Q16) <= allowed_error_q16(f, x)


@given(st.sampled_from(SHAPES), constants(), st.integers(0, ONE_Q16 - 1))
def test_fixed_is_monotone_and_in_range_for_other_constants(shape, constants, x):
    f = Aggressiveness(shape, *constants)
    step = f.fixed(x + 1) - f.fixed(x)
    assert step >= 0 if shape in INCREASING else step <= 0
    assert f.intercept_q16 <= f.fixed(x) <= f.slope_q16 + f.intercept_q16


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize(("slope", "intercept"), [(64 - 2**-16, 2**-16), (0, 2**-16), (0, 64), (32, 32)])
def test_extreme_constants_are_usable(shape, slope, intercept):
    f = Aggressiveness(shape, slope, intercept)
    for x in (0, 1, ONE_Q16 // 2, ONE_Q16 - 1, ONE_Q16):
        assert 1 <= f.fixed(x) <= 64 * ONE_Q16


@pytest.mark.parametrize(
    ("slope", "intercept", "message"),
    [
        (-0.1, 0.25, "slope: expected a number between 0 and 64, got -0.1"),
        (math.nan, 0.25, "slope: expected a number between 0 and 64, got nan"),
        (math.inf, 0.25, "slope: expected a number between 0 and 64, got inf"),
        (1.75, 0, "intercept: expected a number between 1.52588e-05 and 64, got 0"),
        (1.75, 1e-6, "intercept: expected a number between 1.52588e-05 and 64, got 1e-06"),
        (1.75, math.nan, "intercept: expected a number between 1.52588e-05 and 64, got nan"),
        (60, 5, "slope + intercept: expected at most 64, got 65"),
    ],
)
def test_constants_out_of_range(slope, intercept, message):
    with pytest.raises(UsageError) as error:
        Aggressiveness(Shape.LINEAR, slope, intercept)
    assert str(error.value) == message


@pytest.mark.parametrize("shape", list(Shape))
def test_from_name(shape):
    assert Aggressiveness.from_name(shape.label) == Aggressiveness(shape, *default_constants(shape))
    assert Aggressiveness.from_name(shape.label, 1.0, 0.5) == Aggressiveness(shape, 1.0, 0.5)


def test_default_constants():
    assert {default_constants(shape) for shape in Shape if shape is not Shape.REMAINING} == {(1.75, 0.25)}
    f = Aggressiveness.of_shape(Shape.REMAINING)
    assert (f(0.0), f(1.0)) == pytest.approx((1 / 3, 16))
    # Beside a flow with F = 1 the job takes as long as if both had 1: the mean of 1/F is 1 (but for the limit of 16).
    steps = 10_000
    assert sum(1 / f((n + 0.5) / steps) for n in range(steps)) / steps == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["cubic", "", "LINEAR", "1"])
def test_from_name_lists_what_is_allowed(name):
    with pytest.raises(UsageError) as error:
        Aggressiveness.from_name(name)
    assert str(error.value) == (
        "function: expected one of one, linear, quadratic, reciprocal, concave, falling_linear,"
        f" falling_quadratic, remaining, got {name!r}"
    )


@pytest.mark.parametrize(
    ("acked", "total", "ratio"),
    [
        (0, 0, 0),
        (5, 0, 0),
        (0, 3, 0),
        (1, 3, 21845),
        (2, 3, 43690),
        (3, 3, ONE_Q16),
        (4, 3, ONE_Q16),
        (2**48 - 1, 2**48, 65535),
    ],
)
def test_ratio_q16(acked, total, ratio):
    assert ratio_q16(acked, total) == ratio


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 64 * ONE_Q16)), max_size=50))
def test_scale_acked_loses_nothing(sequence):
    carry, scaled = 0, 0
    for acked, f_q16 in sequence:
        step, carry = scale_acked(acked, f_q16, carry)
        assert 0 <= carry < ONE_Q16
        scaled += step
    exact = sum(Fraction(acked * f_q16, ONE_Q16) for acked, f_q16 in sequence)
    assert scaled + Fraction(carry, ONE_Q16) == exact


@given(st.lists(st.integers(0, 2**31)))
def test_scale_acked_by_one_is_the_base_algorithm(sequence):
    carry = 0
    for acked in sequence:
        assert scale_acked(acked, ONE_Q16, carry) == (acked, 0)
