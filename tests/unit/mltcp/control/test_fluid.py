import math
from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.control.fluid import FluidIteration, FluidJob, closed_form_shift, noise_bound, simulate
from mltcp.core.errors import UsageError

INCREASING = [Shape.LINEAR, Shape.QUADRATIC, Shape.RECIPROCAL, Shape.CONCAVE]
FALLING = [Shape.FALLING_LINEAR, Shape.FALLING_QUADRATIC]


def two_jobs(communication_s, offset_s, aggressiveness, period_s=1.0):
    compute_s = period_s - communication_s
    return [FluidJob(compute_s, communication_s, start_s, aggressiveness) for start_s in (0.0, offset_s)]


def offsets(first, second):
    """By how much the second job starts later, iteration by iteration."""
    return [b.start_s - a.start_s for a, b in zip(first, second, strict=True)]


def durations(iterations):
    """Iteration times: from the start of a communication to the next."""
    return [b.start_s - a.start_s for a, b in pairwise(iterations)]


def simulated_shift(offset_s, communication_s, aggressiveness):
    first, second = simulate(two_jobs(communication_s, offset_s, aggressiveness, 3 * communication_s), 2)
    before, after = offsets(first, second)
    return after - before


def close(value, exact, scale):
    """Equal to 1e-9, or to the rounding of times as large as `scale`."""
    return math.isclose(value, exact, rel_tol=1e-9, abs_tol=1e-14 * scale)


def test_a_lone_job_runs_at_its_isolated_time():
    [iterations] = simulate([FluidJob(0.25, 0.5, start_s=1.0)], 3)
    assert iterations == [
        FluidIteration(1.0, 1.5),
        FluidIteration(1.75, 2.25),
        FluidIteration(2.5, 3.0),
    ]


def test_two_jobs_that_start_together_share_evenly():
    first, second = simulate(two_jobs(0.4, 0.0, Aggressiveness()), 5)
    assert first == second
    assert durations(first) == pytest.approx([1.4] * 4, rel=1e-12)


def test_shares_are_in_proportion_to_f():
    """With F = 2x + 1 and one job at x = 1/2 the shares are 2 to 1, and stay so as both F grow."""
    jobs = two_jobs(1.0, 0.5, Aggressiveness(Shape.LINEAR, 2, 1), period_s=10)
    [[first], [second]] = simulate(jobs, 1)
    # The first sends its second half at 2/3 of the link; the second has the rest and then the whole of it.
    assert first.end_s == pytest.approx(0.5 + 0.5 / (2 / 3), rel=1e-12)
    assert second.end_s == pytest.approx(2.0, rel=1e-12)


@given(st.floats(0.001, 0.999), st.floats(0.01, 100), st.floats(0.01, 30), st.floats(0.01, 30))
def test_linear_shift_is_the_closed_form(fraction, communication_s, slope, intercept):
    offset_s = fraction * communication_s
    expected = closed_form_shift(offset_s, communication_s, slope, intercept)
    shift = simulated_shift(offset_s, communication_s, Aggressiveness(Shape.LINEAR, slope, intercept))
    assert close(shift, expected, communication_s)


@given(st.sampled_from([Shape.QUADRATIC, Shape.CONCAVE]), st.floats(0.001, 0.999), st.floats(0.1, 10))
def test_quadratic_and_concave_shift_as_linear_does(shape, offset_s, slope):
    expected = closed_form_shift(offset_s, 1.0, slope, 0.25)
    assert close(simulated_shift(offset_s, 1.0, Aggressiveness(shape, slope, 0.25)), expected, 1.0)


@given(st.sampled_from(FALLING), st.floats(0.001, 0.999), st.floats(0.1, 10))
def test_falling_shapes_shift_the_other_way(shape, offset_s, slope):
    expected = closed_form_shift(offset_s, 1.0, -slope, slope + 0.25)
    assert expected < 0
    assert close(simulated_shift(offset_s, 1.0, Aggressiveness(shape, slope, 0.25)), expected, 1.0)


@given(st.floats(0.001, 0.999))
def test_reciprocal_shift(offset_s):
    """The integral of 1/F is 4x - 1.75x^2; the rest of it for the first job is the integral of the second."""
    left = (4 - 1.75) - (4 * offset_s - 1.75 * offset_s**2)
    sent = (4 - math.sqrt(16 - 7 * left)) / 3.5
    shift = simulated_shift(offset_s, 1.0, Aggressiveness(Shape.RECIPROCAL))
    assert close(shift, (1 - sent) - offset_s, 1.0)


def test_without_f_nothing_shifts():
    assert simulated_shift(0.3, 1.0, Aggressiveness(Shape.ONE)) == pytest.approx(0, abs=1e-14)
    assert simulated_shift(0.3, 1.0, Aggressiveness(slope=0)) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("offset_s", [-1.0, 0.0, 0.5, 0.7])
def test_closed_form_is_zero_without_overlap(offset_s):
    assert closed_form_shift(offset_s, 0.5, 1.75, 0.25) == 0


def stepwise_ends(jobs, step_s):
    """When each job's first communication ends, by plain numerical integration (the midpoint rule)."""
    ratios, ends, now_s = [0.0] * len(jobs), [math.inf] * len(jobs), 0.0

    def after(ratios, sending, at, step_s):
        weights = {j: jobs[j].aggressiveness(at[j]) for j in sending}
        return [
            ratio + step_s * weights[j] / sum(weights.values()) / jobs[j].communication_s
            if j in weights
            else ratio
            for j, ratio in enumerate(ratios)
        ]

    while min(ratios) < 1:
        sending = [j for j, job in enumerate(jobs) if job.start_s <= now_s and ratios[j] < 1]
        half_way = after(ratios, sending, ratios, step_s / 2)
        ratios = after(ratios, sending, half_way, step_s)
        now_s += step_s
        ends = [
            now_s if ratio >= 1 and end == math.inf else end for ratio, end in zip(ratios, ends, strict=True)
        ]
    return ends


def test_unequal_jobs_agree_with_numerical_integration():
    step_s = 1 / 8192
    jobs = [
        FluidJob(9.0, 0.5, 0.0, Aggressiveness(Shape.CONCAVE)),
        FluidJob(9.0, 0.75, 0.125, Aggressiveness(Shape.RECIPROCAL)),
        FluidJob(9.0, 0.25, 0.25, Aggressiveness(Shape.QUADRATIC, 3, 0.5)),
        FluidJob(9.0, 0.375, 0.375, Aggressiveness(Shape.FALLING_QUADRATIC)),
    ]
    ends = [iterations[0].end_s for iterations in simulate(jobs, 1)]
    assert ends == pytest.approx(stepwise_ends(jobs, step_s), abs=3 * step_s)
    assert max(ends) == pytest.approx(sum(job.communication_s for job in jobs), rel=1e-12)


@pytest.mark.parametrize("shape", INCREASING)
def test_increasing_shapes_interleave(shape):
    """From nearly together to d >= aT, after which both run as if alone."""
    first, second = simulate(two_jobs(0.4, 0.001, Aggressiveness(shape)), 60)
    assert offsets(first, second)[-1] == pytest.approx(0.4, rel=1e-9)
    assert all(a <= b + 1e-12 for a, b in pairwise(offsets(first, second)))
    assert durations(first)[-1] == pytest.approx(1.0, rel=1e-9)
    assert durations(second)[-1] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("shape", FALLING)
def test_falling_shapes_drive_jobs_together(shape):
    """From nearly interleaved to d = 0, where each iteration has the communication of both."""
    first, second = simulate(two_jobs(0.4, 0.399, Aggressiveness(shape)), 60)
    assert offsets(first, second)[-1] == pytest.approx(0.0, abs=1e-9)
    assert durations(second)[-1] == pytest.approx(1.4, rel=1e-9)


@pytest.mark.parametrize("shape", INCREASING)
@pytest.mark.parametrize(("jobs", "communication_s"), [(3, 0.30), (4, 0.22)])
def test_several_jobs_end_at_their_isolated_time(shape, jobs, communication_s):
    result = simulate(
        [
            FluidJob(1 - communication_s, communication_s, 0.01 * k, Aggressiveness(shape))
            for k in range(jobs)
        ],
        60,
    )
    for iterations in result:
        assert durations(iterations)[0] > 1.05
        assert durations(iterations)[-10:] == pytest.approx([1.0] * 10, rel=1e-9)


def test_different_jobs_gain_over_fair_sharing():
    def mean_s(shape):
        jobs = [
            FluidJob(0.65, 0.35, 0.0, Aggressiveness(shape)),
            FluidJob(0.30, 0.20, 0.05, Aggressiveness(shape)),
        ]
        return [sum(durations(iterations)) / 199 for iterations in simulate(jobs, 200)]

    assert all(mltcp < fair for mltcp, fair in zip(mean_s(Shape.LINEAR), mean_s(Shape.ONE), strict=True))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.builds(
            FluidJob,
            st.floats(0, 2),
            st.floats(0.01, 2),
            st.floats(0, 2),
            st.builds(Aggressiveness, st.sampled_from(list(Shape)), st.floats(0, 8), st.floats(0.01, 8)),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 0.1),
)
def test_the_link_is_never_overcommitted_and_no_job_beats_itself_alone(jobs, noise_s):
    result = simulate(jobs, 5, noise_s, seed=3)
    for job, iterations in zip(jobs, result, strict=True):
        assert len(iterations) == 5
        assert iterations[0].start_s == job.start_s
        assert all(i.end_s - i.start_s >= job.communication_s * (1 - 1e-9) for i in iterations)
        assert all(a.end_s <= b.start_s for a, b in pairwise(iterations))
    last_s = max(iterations[-1].end_s for iterations in result)
    sent_s = sum(5 * job.communication_s for job in jobs)
    assert sent_s <= (last_s - min(job.start_s for job in jobs)) * (1 + 1e-9)


def mean_overlap_s(communication_s, aggressiveness, noise_s, iterations=5000, seed=1):
    """By how much the second job's communication overlaps the first's: the mean in steady state."""
    jobs = two_jobs(communication_s, 0.1, aggressiveness)
    first, second = simulate(jobs, iterations, noise_s, seed)
    starts = [iteration.start_s for iteration in first]
    errors = []
    for iteration in second[100:-100]:
        after = bisect_right(starts, iteration.start_s)
        if 0 < after < len(starts):
            before_s = iteration.start_s - starts[after - 1]
            after_s = starts[after] - iteration.start_s
            errors.append(max(0.0, communication_s - before_s, communication_s - after_s))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("noise_s", [0.0005, 0.002, 0.01, 0.03])
@pytest.mark.parametrize("communication_s", [0.4, 0.5])
def test_noise_stays_within_its_bound(communication_s, noise_s):
    linear = Aggressiveness()
    error_s = mean_overlap_s(communication_s, linear, noise_s)
    assert error_s < noise_bound(noise_s, linear.slope, linear.intercept)
    if communication_s == 0.5:
        # No slack, so that all noise shows: the bound is of the right order.
        assert error_s > 0.25 * noise_bound(noise_s, linear.slope, linear.intercept)


def test_what_does_not_pull_apart_leaves_the_bound():
    bound_s = noise_bound(0.002, 1.75, 0.25)
    for shape in (Shape.ONE, *FALLING):
        assert mean_overlap_s(0.5, Aggressiveness(shape), 0.002) > 5 * bound_s


def test_noise_bound():
    assert noise_bound(0.01, 1.75, 0.25) == pytest.approx(0.02 * (1 + 1 / 7))
    assert noise_bound(0.01, 0.0, 1.0) == math.inf


def test_noise_is_reproducible_by_seed():
    jobs = two_jobs(0.4, 0.1, Aggressiveness())
    assert simulate(jobs, 20, 0.01, seed=5) == simulate(jobs, 20, 0.01, seed=5)
    assert simulate(jobs, 20, 0.01, seed=5) != simulate(jobs, 20, 0.01, seed=6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FluidJob(-1, 1), "compute_s: expected a number of at least 0, got -1"),
        (lambda: FluidJob(1, 0), "communication_s: expected a number above 0, got 0"),
        (lambda: FluidJob(1, math.nan), "communication_s: expected a number above 0, got nan"),
        (lambda: FluidJob(1, 1, math.inf), "start_s: expected a number of at least 0, got inf"),
        (lambda: simulate([], -1), "iterations: expected a number of at least 0, got -1"),
        (lambda: simulate([], 1, -0.1), "noise_s: expected a number of at least 0, got -0.1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(UsageError) as error:
        call()
    assert str(error.value) == message
