"""The figures of a comparison, against runs whose figures can be worked out by hand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.compare.results import (
    ApproachRun,
    Change,
    JobRun,
    LinkExcerpt,
    Measured,
    Settling,
    Shift,
    compare_result,
    from_document,
    settling_of,
    to_document,
)
from mltcp.core.errors import MltcpError, UsageError


def job_run(name, times, began=0.0, arrival=0.0, **more):
    starts = [began + sum(times[:index]) for index in range(len(times))]
    values = {"marks": 0, "retransmits": 0, **more}
    ended = starts[-1] + times[-1]
    return JobRun(name, "cubic", tuple(times), tuple(starts), arrival, ended, **values)


def run(approach, repeat=0, decisions_s=(), **jobs):
    return ApproachRun(approach, repeat, tuple(job_run(n, t) for n, t in jobs.items()), decisions_s)


def result(*runs, **more):
    (one,) = compare_result([Measured("set", {"rate_bps": 1}, runs, **more)]).sets
    return one


def test_figures_of_one_repeat():
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


def measured():
    use = LinkExcerpt("left->right", 1000, 0.0, 0.005, {"a": [1, 2], "b": [3, 4]})
    jobs = (job_run("a", [0.25, 0.5], servers=("s0", "s1")), job_run("b", [0.125, 0.25]))
    shared = ApproachRun("cassini", 0, jobs, (0.5,), 3, (use,), (Shift("a", 0.5, 0.125),))
    alone = run("isolated", a=[0.25] * 2, b=[0.125] * 2)
    return Measured("s", {"rate_bps": 1, "ecn_by": None}, (alone, shared), 0.75, Change("a", 1, 2.0))


def test_document_comes_back_as_it_was():
    result = compare_result([measured()])
    text = json.dumps(to_document(result), allow_nan=False)
    assert from_document(json.loads(text)) == CompareResultWithLists(result)


class CompareResultWithLists:
    """Equal to what is equal but for lists in the place of tuples."""

    def __init__(self, result):
        self.document = json.loads(json.dumps(to_document(result)))

    def __eq__(self, other):
        return json.loads(json.dumps(to_document(other))) == self.document


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.update(schema=2),
        lambda document: document.pop("sets"),
        lambda document: document["sets"][0].pop("runs"),
        lambda document: document["sets"][0].update(surprise=1),
        lambda document: document["sets"][0]["runs"][0]["jobs"][0].pop("marks"),
    ],
)
def test_another_document_is_refused(spoil):
    document = to_document(compare_result([measured()]))
    spoil(document)
    with pytest.raises(UsageError, match="not a comparison"):
        from_document(document)


@pytest.mark.parametrize("times", [(), (0.0,), (-1.0,), (math.nan,), (math.inf,)])
def test_times_that_cannot_be_are_refused(times):
    with pytest.raises(MltcpError):
        JobRun("a", "cubic", times, (0.0,) * len(times), 0.0, 1.0, 0, 0)
