"""Ratios from reported iteration times, and what becomes of them."""

import pytest

from placement.model.throughput_table import Layout, SensitivityTable
from placement.service.contention import ENOUGH, SKIPPED, MeasuredJob, ThroughputMonitor
from placement.service.ratio_table import RatioCell, RatioTable

LOUD, QUIET = Layout("loud", 2, 2), Layout("quiet", 2, 2)
PAIRS = {(one, other): 0.8 for one in (LOUD, QUIET) for other in (LOUD, QUIET)}
TABLE = SensitivityTable("t", {LOUD: 100.0, QUIET: 100.0}, PAIRS)
NS = 10**9


def table():
    kept = {}
    return RatioTable(TABLE, {}, kept.__setitem__), kept


def running(layout, *nodes, run=0):
    return MeasuredJob(layout, frozenset(nodes), 10.0, run)


def report(monitor, name, seconds, number=ENOUGH + SKIPPED):
    for each in range(number):
        monitor.reported(name, each, round(seconds * NS))


def test_an_observation_weighs_a_quarter_at_first_and_a_fifth_then():
    cell = RatioCell(0.8).with_observation(0.4)
    assert cell == RatioCell(pytest.approx(0.7), 1)
    assert cell.with_observation(0.4) == RatioCell(pytest.approx(0.64), 2)
    assert RatioCell(0.8, 50).with_observation(0.4).ratio == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("ratio", "taken", "counted"),
    [
        (0.6, 0.6, (1, 0, 0)),
        (1.1, 1.0, (1, 1, 0)),
        (0.2, 0.35, (1, 1, 0)),
        (1.3, None, (0, 0, 1)),
        (0.05, None, (0, 0, 1)),
    ],
)
def test_a_ratio_is_taken_clamped_or_refused(ratio, taken, counted):
    ratios, kept = table()
    said = ratios.note((LOUD, QUIET), ratio)
    assert (ratios.counts.observed, ratios.counts.clamped, ratios.counts.refused) == counted
    assert bool(said) == (taken != ratio)
    expected = 0.8 if taken is None else 0.8 + (taken - 0.8) / 4
    assert ratios.model.table.ratio(LOUD, QUIET) == pytest.approx(expected)
    assert kept == ({} if taken is None else {(LOUD, QUIET): ratios.cells[(LOUD, QUIET)]})
    assert ratios.model.table.ratio(QUIET, LOUD) == 0.8


def test_the_median_beside_one_job_is_the_ratio_of_the_pair():
    ratios, _ = table()
    monitor = ThroughputMonitor(ratios)
    jobs = {"a": (running(LOUD, 0, 1), 0), "b": (running(QUIET, 1, 2), 0)}
    monitor.update(jobs)
    report(monitor, "b", 0.1, 1)  # it is a neighbour from now on
    report(monitor, "a", 0.2)
    monitor.reported("a", 99, 100 * NS)  # one stall does not count
    monitor.update(jobs)
    assert monitor.ratio("a") == pytest.approx(0.5)
    assert ratios.cells[(LOUD, QUIET)].ratio == pytest.approx(0.8 + (0.5 - 0.8) / 4)
    assert (QUIET, LOUD) not in ratios.cells


def test_a_job_that_has_not_reported_yet_is_no_neighbour_and_one_on_other_nodes_never_is():
    ratios, _ = table()
    monitor = ThroughputMonitor(ratios)
    jobs = {"a": (running(LOUD, 0, 1), 0), "b": (running(QUIET, 1, 2), 0), "c": (running(QUIET, 3, 4), 0)}
    monitor.update(jobs)
    report(monitor, "c", 0.1)
    report(monitor, "a", 0.1)
    monitor.update(jobs)
    assert monitor.ratio("a") == 1.0
    assert not ratios.cells


def test_a_ratio_beside_two_jobs_belongs_to_no_pair():
    ratios, _ = table()
    monitor = ThroughputMonitor(ratios)
    jobs = {"a": (running(LOUD, 0, 1), 0), "b": (running(QUIET, 0), 0), "c": (running(QUIET, 1), 0)}
    monitor.update(jobs)
    report(monitor, "b", 0.1, 1)
    report(monitor, "c", 0.1, 1)
    report(monitor, "a", 0.25)
    monitor.update(jobs)
    assert monitor.ratio("a") == pytest.approx(0.4)
    assert (ratios.counts.ambiguous, ratios.cells) == (1, {})


def test_progress_counts_over_runs_and_a_new_run_begins_anew():
    monitor = ThroughputMonitor(table()[0])
    monitor.update({"a": (running(LOUD, 0, 1), 0)})
    assert monitor.done("a") is None
    report(monitor, "a", 0.1, 4)
    assert monitor.done("a") == 4
    monitor.update({"a": (running(LOUD, 2, 3, run=1), 4)})
    assert (monitor.done("a"), monitor.done_before("a")) == (None, 4)
    report(monitor, "a", 0.1, 2)
    assert monitor.done("a") == 6
