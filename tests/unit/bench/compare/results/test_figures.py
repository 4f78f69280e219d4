"""The figures of runs and results, against runs whose figures can be worked out by hand."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.compare.results.figures import (
    CONVERGENCE_SLOWDOWN,
    CONVERGENCE_WINDOW,
    Settling,
    convergence_iterations,
    percentile,
    settling_of,
)
from bench.compare.results.runs import ApproachRun, Change, JobRun
from mltcp.core.errors import MltcpError
from tests.unit.bench.compare.results.runs import contend_result, job_run, policy_run, result, run

LINK = {"rate_bps": 200_000_000, "limit_bytes": 400_000, "ecn_threshold_bytes": None}


def isolated_run(a=0.4, b=0.4):
    return policy_run("isolated", {"a": [a] * 4, "b": [b] * 4})


def test_figures_of_one_repeat():
    found = contend_result(LINK, [isolated_run(), policy_run("reno", {"a": [0.8, 0.4] * 2, "b": [0.4] * 4})])
    figures = found.approach("reno").figures
    assert figures.slowdown == pytest.approx(1.25)  # slowdowns 2, 1, 2, 1 and four of 1
    assert figures.steady_slowdown == pytest.approx(1.25)  # 2, 1 and 1, 1
    assert figures.p99_slowdown == pytest.approx(2.0)
    assert figures.convergence_iterations is None
    assert figures.converged_p99_slowdown is None


def test_steady_figures_leave_the_first_half_out():
    run = policy_run("reno", {"a": [4.0, 4.0, 0.4, 0.4, 0.6], "b": [4.0, 4.0, 0.4, 0.4, 0.4]})
    figures = contend_result(LINK, [isolated_run(), run]).approach("reno").figures
    assert figures.steady_slowdown == pytest.approx((5 * 1 + 1.5) / 6)
    assert figures.steady_p99_slowdown == pytest.approx(1 + 0.5 * 0.95)  # rank 4.95 of 0..5


def test_each_job_is_compared_with_itself():
    runs = [isolated_run(a=0.2, b=0.8), policy_run("reno", {"a": [0.3] * 4, "b": [0.8] * 4})]
    found = contend_result(LINK, runs)
    slowdowns = [job.figures.slowdown for job in found.approach("reno").jobs]
    assert slowdowns == pytest.approx([1.5, 1.0])
    assert found.approach("reno").figures.slowdown == pytest.approx(1.25)


def test_baseline_is_the_median_over_isolated_runs_of_the_mean():
    times = ([0.4, 0.6], [0.1, 0.1], [9.0, 9.0])
    isolated = [policy_run("isolated", {"a": each}, repeat=repeat) for repeat, each in enumerate(times)]
    baselines = contend_result(LINK, isolated).baselines
    assert list(baselines.values()) == [{"a": pytest.approx(0.5)}] * 3


def test_figures_are_medians_over_repeats_with_their_spread():
    repeats = [
        policy_run(
            "reno",
            {"a": [0.4 * slowdown] * 4, "b": [0.4 * slowdown] * 4},
            retransmits,
            utilization=use,
            repeat=repeat,
        )
        for repeat, (slowdown, retransmits, use) in enumerate(((1.5, 7, 0.5), (1.1, 3, 0.7), (1.2, 100, 0.6)))
    ]
    reno = contend_result(LINK, [isolated_run(), *repeats]).approach("reno")
    assert reno.figures.slowdown == pytest.approx(1.2)
    assert (reno.lowest.slowdown, reno.highest.slowdown) == (pytest.approx(1.1), pytest.approx(1.5))
    assert (reno.figures.retransmits, reno.figures.utilization) == (7, 0.6)
    assert reno.middle_run is repeats[2]


def test_counts_stay_whole_when_two_repeats_are_in_the_middle():
    repeats = [
        policy_run("reno", {"a": [0.4]}, count, utilization=count / 10, repeat=count - 3) for count in (3, 4)
    ]
    figures = contend_result(LINK, repeats).approach("reno").figures
    assert figures.retransmits == 4
    assert figures.utilization == pytest.approx(0.35)


def test_never_converging_counts_as_later_than_any_iteration():
    calm, restless = [0.4] * 4, [0.4, 0.4, 0.4, 0.8]
    repeats = [
        policy_run("reno", {"a": times, "b": calm}, repeat=repeat)
        for repeat, times in enumerate((calm, restless, restless))
    ]
    reno = contend_result(LINK, [isolated_run(), *repeats]).approach("reno")
    assert reno.figures.convergence_iterations is None
    assert (reno.lowest.convergence_iterations, reno.highest.convergence_iterations) == (0, None)


def test_the_job_that_converges_last_decides():
    late = [0.8] + [0.4] * 9
    run = policy_run("reno", {"a": [0.4] * 10, "b": late})
    figures = contend_result(LINK, [isolated_run(), run]).approach("reno").figures
    assert figures.convergence_iterations == 1
    assert figures.converged_p99_slowdown == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("slowdowns", "expected"),
    [
        ([1.0] * 6, 0),
        ([1.05], 0),
        ([1.06], None),
        ([2.0] + [1.0] * 9, 1),
        ([1.0] * 9 + [2.0], None),
        ([1.0] * 5 + [1.5] + [1.0] * 10, 6),
        ([1.1, 1.0, 1.0], 0),
    ],
)
def test_convergence(slowdowns, expected):
    assert convergence_iterations(slowdowns) == expected


@given(st.lists(st.sampled_from([0.98, 1.0, 1.04, 1.1, 1.5]), min_size=1, max_size=40))
def test_convergence_follows_its_definition(slowdowns):
    starts = range(max(1, len(slowdowns) - CONVERGENCE_WINDOW + 1))
    calm = [
        statistics.fmean(slowdowns[at : at + CONVERGENCE_WINDOW]) <= CONVERGENCE_SLOWDOWN for at in starts
    ]
    first = next((index for index in starts if all(calm[index:])), None)
    assert convergence_iterations(slowdowns) == first


@given(st.lists(st.floats(0.001, 1000), min_size=1), st.floats(0, 100))
def test_percentile_interpolates_as_numpy_does(values, percent):
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9)


def test_policies_keep_the_order_of_their_first_run():
    names = ["reno", "isolated", "mltcp_reno", "reno", "isolated"]
    runs = [policy_run(name, {"a": [0.4]}, repeat=index // 3) for index, name in enumerate(names)]
    found = contend_result(LINK, runs)
    assert [each.approach for each in found.approaches] == ["reno", "isolated", "mltcp_reno"]


def test_job_without_isolated_run_is_named():
    runs = [policy_run("isolated", {"a": [0.4]}), policy_run("reno", {"a": [0.4], "b": [0.4]})]
    with pytest.raises(MltcpError, match="policy reno: job b has no isolated run"):
        contend_result(LINK, runs)


@pytest.mark.parametrize("times", [(), (0.4, 0.0), (-1.0,), (math.nan,), (math.inf,)])
def test_impossible_iteration_times_are_refused(times):
    with pytest.raises(MltcpError, match="job a under reno"):
        JobRun("a", "reno", times, (0.0,) * len(times), 0.0, 1.0, 0, 0)


def test_jobs_of_the_same_name_are_refused():
    job = job_run("vgg16", (0.4,))
    with pytest.raises(MltcpError, match="names of their own, not vgg16, vgg16"):
        ApproachRun("reno", 0, (job, job))


def test_figures_of_a_comparison():
    one = result(run("isolated", a=[0.4] * 4, b=[0.2] * 4), run("fair", a=[0.8, 0.4] * 2, b=[0.2] * 4))
    figures = one.approach("fair").figures
    assert figures.slowdown == pytest.approx(1.25)  # 2, 1, 2, 1 and four of 1
    assert figures.steady_slowdown == pytest.approx(1.25)
    assert figures.p99_slowdown == pytest.approx(2.0)
    assert figures.mean_s == pytest.approx(0.4)  # (0.8 + 0.4) * 2 + 0.2 * 4 over eight
    assert figures.jct_s == pytest.approx((2.4 + 0.8) / 2)
    assert one.approach("fair").makespan_s == pytest.approx(2.4)


def test_slowdowns_are_paired_within_a_repeat():
    # The machine is half as fast in the second repeat: nothing has slowed the job down.
    one = result(
        run("isolated", 0, a=[0.2] * 4),
        run("fair", 0, a=[0.3] * 4),
        run("isolated", 1, a=[0.4] * 4),
        run("fair", 1, a=[0.6] * 4),
    )
    assert one.approach("fair").lowest.slowdown == pytest.approx(1.5)
    assert one.approach("fair").highest.slowdown == pytest.approx(1.5)


def test_marks_and_retransmissions_are_of_an_iteration():
    jobs = (job_run("a", [0.1] * 4, marks=8, retransmits=2), job_run("b", [0.1] * 6, marks=2))
    one = result(ApproachRun("fair", 0, jobs))
    figures = one.approach("fair").figures
    assert (figures.marks_per_iteration, figures.retransmits_per_iteration) == (1.0, 0.2)
    assert one.approach("fair").jobs[0].figures.marks_per_iteration == 2.0


def test_completion_time_counts_from_the_arrival():
    one = result(ApproachRun("fair", 0, (job_run("a", [1.0, 1.0], began=5.0, arrival=3.0),)))
    assert one.approach("fair").figures.jct_s == pytest.approx(4.0)


def test_without_isolated_runs_there_is_no_slowdown():
    figures = result(run("fair", a=[0.4] * 4)).approach("fair").figures
    assert (figures.slowdown, figures.p99_slowdown) == (None, None)


def test_a_job_without_its_isolated_run_is_an_error():
    with pytest.raises(MltcpError, match="job b has no isolated run"):
        result(run("isolated", a=[0.4]), run("fair", a=[0.4], b=[0.4]))


def test_decisions_of_all_repeats_count():
    one = result(
        run("cassini", 0, (0.001, 0.003), a=[0.1]),
        run("cassini", 1, (0.002,), a=[0.1]),
        run("fair", a=[0.1]),
    )
    cassini = one.approach("cassini")
    assert (cassini.decision_s, cassini.longest_decision_s, cassini.decisions) == (0.002, 0.003, 3)
    assert one.approach("fair").decision_s is None


def test_settling_counts_from_the_change_to_the_last_deviation():
    # The change is at iteration 4 of a; b then takes six slow iterations until it is where it stays.
    change = Change("a", 4, 2.0)
    slow = [0.4] * 6
    a = job_run("a", [0.2] * 4 + [0.4] * 16)
    b = job_run("b", [0.2] * 4 + slow + [0.2] * 14)
    found = settling_of(ApproachRun("fair", 0, (a, b)), change)
    assert found.iterations == 6
    assert found.seconds == pytest.approx(6 * 0.4)


def test_what_never_settles_is_never_settled():
    restless = [0.2] * 4 + [0.2] * 10 + [0.2, 0.2, 0.2, 0.2, 0.9] * 2
    jobs = (job_run("a", [0.2] * 24), job_run("b", restless))
    assert settling_of(ApproachRun("fair", 0, jobs), Change("a", 4, 2.0)) == Settling(None, None)


def test_a_change_that_was_not_reached_says_nothing():
    assert settling_of(run("fair", a=[0.2] * 4), Change("a", 4, 2.0)) is None
    assert settling_of(run("fair", a=[0.2] * 4), Change("b", 1, 2.0)) is None


@given(st.integers(1, 12), st.integers(12, 40))
def test_settling_finds_the_length_of_any_step(step, rest):
    # A step of ten per cent: a window that holds three or more of its iterations is off by more than five.
    times = [1.0] * 3 + [1.1] * step + [1.0] * (rest + step)
    found = settling_of(ApproachRun("fair", 0, (job_run("a", times),)), Change("a", 3, 1.0))
    assert found.iterations == max(0, step - 2)
