"""The figures of a `contend` run, against runs whose figures can be worked out by hand."""

import json
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.compare.contend_results import (
    CONVERGENCE_SLOWDOWN,
    CONVERGENCE_WINDOW,
    JobRun,
    PolicyRun,
    contend_result,
    convergence_iterations,
    percentile,
    to_document,
    to_json,
)
from mltcp.core.errors import MltcpError

LINK = {"rate_bps": 200_000_000, "limit_bytes": 400_000, "ecn_threshold_bytes": None}


def policy_run(policy, jobs, retransmits=0, ecn_marks=0, drops=0, utilization=0.5):
    job_runs = tuple(JobRun(name, tuple(times), policy) for name, times in jobs.items())
    return PolicyRun(policy, job_runs, retransmits, ecn_marks, drops, utilization)


def isolated_run(a=0.4, b=0.4):
    return policy_run("isolated", {"a": [a] * 4, "b": [b] * 4})


def test_figures_of_one_repeat():
    result = contend_result(LINK, [isolated_run(), policy_run("reno", {"a": [0.8, 0.4] * 2, "b": [0.4] * 4})])
    figures = result.policy("reno").figures
    assert figures.mean_slowdown == pytest.approx(1.25)  # slowdowns 2, 1, 2, 1 and four of 1
    assert figures.steady_slowdown == pytest.approx(1.25)  # 2, 1 and 1, 1
    assert figures.p99_slowdown == pytest.approx(2.0)
    assert figures.convergence_iterations is None
    assert figures.converged_p99_slowdown is None


def test_steady_figures_leave_the_first_half_out():
    run = policy_run("reno", {"a": [4.0, 4.0, 0.4, 0.4, 0.6], "b": [4.0, 4.0, 0.4, 0.4, 0.4]})
    figures = contend_result(LINK, [isolated_run(), run]).policy("reno").figures
    assert figures.steady_slowdown == pytest.approx((5 * 1 + 1.5) / 6)
    assert figures.steady_p99_slowdown == pytest.approx(1 + 0.5 * 0.95)  # rank 4.95 of 0..5


def test_each_job_is_compared_with_itself():
    runs = [isolated_run(a=0.2, b=0.8), policy_run("reno", {"a": [0.3] * 4, "b": [0.8] * 4})]
    result = contend_result(LINK, runs)
    slowdowns = [job.slowdown for job in result.policy("reno").jobs]
    assert slowdowns == pytest.approx([1.5, 1.0])
    assert result.policy("reno").figures.mean_slowdown == pytest.approx(1.25)


def test_yardstick_is_the_median_over_isolated_runs_of_the_mean():
    isolated = [policy_run("isolated", {"a": times}) for times in ([0.4, 0.6], [0.1, 0.1], [9.0, 9.0])]
    assert contend_result(LINK, isolated).isolated_s == {"a": pytest.approx(0.5)}


def test_figures_are_medians_over_repeats_with_their_spread():
    repeats = [
        policy_run(
            "reno", {"a": [0.4 * slowdown] * 4, "b": [0.4 * slowdown] * 4}, retransmits, utilization=use
        )
        for slowdown, retransmits, use in ((1.5, 7, 0.5), (1.1, 3, 0.7), (1.2, 100, 0.6))
    ]
    reno = contend_result(LINK, [isolated_run(), *repeats]).policy("reno")
    assert reno.figures.mean_slowdown == pytest.approx(1.2)
    assert (reno.lowest.mean_slowdown, reno.highest.mean_slowdown) == (pytest.approx(1.1), pytest.approx(1.5))
    assert (reno.figures.retransmits, reno.figures.utilization) == (7, 0.6)
    assert reno.middle_run is repeats[2]


def test_counts_stay_whole_when_two_repeats_are_in_the_middle():
    repeats = [policy_run("reno", {"a": [0.4]}, count, utilization=count / 10) for count in (3, 4)]
    figures = contend_result(LINK, repeats).policy("reno").figures
    assert figures.retransmits == 4
    assert figures.utilization == pytest.approx(0.35)


def test_never_converging_counts_as_later_than_any_iteration():
    calm, restless = [0.4] * 4, [0.4, 0.4, 0.4, 0.8]
    repeats = [policy_run("reno", {"a": times, "b": calm}) for times in (calm, restless, restless)]
    reno = contend_result(LINK, [isolated_run(), *repeats]).policy("reno")
    assert reno.figures.convergence_iterations is None
    assert (reno.lowest.convergence_iterations, reno.highest.convergence_iterations) == (0, None)


def test_the_job_that_converges_last_decides():
    late = [0.8] + [0.4] * 9
    run = policy_run("reno", {"a": [0.4] * 10, "b": late})
    figures = contend_result(LINK, [isolated_run(), run]).policy("reno").figures
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


def test_without_isolated_runs_slowdowns_are_null_and_times_are_not():
    run = policy_run("reno", {"a": [0.4, 0.6]}, retransmits=5)
    document = to_document(contend_result(LINK, [run]))
    (policy,) = document["policies"]
    for name in ("mean_slowdown", "p99_slowdown", "steady_slowdown", "convergence_iterations"):
        assert policy[name] is None
    assert policy["jobs"][0]["slowdown"] is None
    assert policy["jobs"][0]["mean_s"] == 0.5
    assert policy["retransmits"] == 5


def test_document_is_that_of_schema_1():
    repeats = [policy_run("dctcp", {"a": [0.44, 0.4], "b": [0.4, 0.4]}, 2, 3, 4, 0.75) for _ in range(2)]
    text = to_json(contend_result(LINK, [isolated_run(), *repeats]))
    assert "\n" not in text
    document = json.loads(text)
    assert document["schema"] == 1
    assert document["link"] == LINK
    policy = document["policies"][1]
    assert policy["policy"] == "dctcp"
    assert policy["mean_slowdown"] == 1.025
    assert policy["steady_slowdown"] == 1.0
    assert policy["p99_slowdown"] == 1.097  # rank 2.97 of the slowdowns 1, 1, 1, 1.1
    assert policy["convergence_iterations"] == 0  # both iterations of job a together come to 1.05
    assert (policy["retransmits"], policy["ecn_marks"], policy["drops"]) == (2, 3, 4)
    assert (policy["utilization"], policy["repeats"]) == (0.75, 2)
    assert policy["spread"]["mean_slowdown"] == [1.025, 1.025]
    job = policy["jobs"][0]
    assert (job["job"], job["cc"]) == ("a", "dctcp")
    assert job["iteration_s"] == [0.44, 0.4, 0.44, 0.4]
    assert job["iterations"] == [2, 2]
    assert (job["mean_s"], job["median_s"], job["p99_s"]) == (0.42, 0.42, 0.4396)


def test_policies_keep_the_order_of_their_first_run():
    names = ["reno", "isolated", "mltcp_reno", "reno", "isolated"]
    runs = [policy_run(name, {"a": [0.4]}) for name in names]
    result = contend_result(LINK, runs)
    assert [policy.policy for policy in result.policies] == ["reno", "isolated", "mltcp_reno"]


def test_job_without_isolated_run_is_named():
    runs = [policy_run("isolated", {"a": [0.4]}), policy_run("reno", {"a": [0.4], "b": [0.4]})]
    with pytest.raises(MltcpError, match="policy reno: job b has no isolated run"):
        contend_result(LINK, runs)


@pytest.mark.parametrize("times", [(), (0.4, 0.0), (-1.0,), (float("nan"),), (float("inf"),)])
def test_impossible_iteration_times_are_refused(times):
    with pytest.raises(MltcpError, match="job a under reno"):
        JobRun("a", times, "reno")


def test_jobs_of_the_same_name_are_refused():
    job = JobRun("vgg16", (0.4,), "reno")
    with pytest.raises(MltcpError, match="names of their own, not vgg16, vgg16"):
        PolicyRun("reno", (job, job), 0, 0, 0, 0.5)
