"""Asynchronous jobs at the size of the lab: the trace, the prediction, kept records, and what is refused."""

import json
from dataclasses import replace

import pytest

from bench.cli.main import main
from bench.live_jobs.async_jobs import (
    AsyncComparison,
    AsyncJobsPlan,
    ChangeCosts,
    MalleableRun,
    document,
    parse_kept,
    predict,
)
from bench.live_jobs.async_lab import KINDS, LINK, ClusterShape, lab_trace, models
from bench.live_jobs.async_profile import ThroughputProfile
from placement.model.queueing import throughput
from placement.model.service_times import ServiceTimes
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.traces.async_sgd import draw_trace

SHAPE = ClusterShape(LINK)
PROFILE = ThroughputProfile("p", {kind.name: kind.nominal(LINK) for kind in KINDS}, {}, 0.0)


def plan(jobs=20, policies=("hell+fill",), scale=1.0):
    trace = lab_trace(draw_trace(models(), jobs, 1), LINK, 16, 0.6, scale)
    return AsyncJobsPlan(trace, policies, SHAPE, "hybrid", 40, False, 1)


def predicted(policy, told="hybrid", actual="hybrid", jobs=20):
    found = PROFILE.models(16)
    return predict(plan(jobs, (policy,)), policy, found[told], found[actual])


def test_the_trace_has_the_load_that_was_asked_for():
    trace = lab_trace(draw_trace(models(), 60, 5), LINK, 16, 0.6, 2.0)
    kinds = {kind.name: kind for kind in KINDS}
    works = [
        int(job.workload.total_samples) / throughput(kinds[job.workload.name].nominal(LINK), 1)
        for job in trace.jobs
    ]
    # 60 jobs of a drawn trace are not its mean.
    assert sum(works) / trace.arrivals_ns * 1e9 / 16 == pytest.approx(0.6, rel=0.25)
    half = lab_trace(draw_trace(models(), 60, 5), LINK, 16, 0.6, 1.0)
    assert half.arrivals_ns == pytest.approx(trace.arrivals_ns / 2, abs=2)


def test_the_prediction_counts_the_workers_that_move():
    hell = predicted("hell+fill")
    assert hell.outcome.mean_completion_s > 0
    assert hell.joins >= 20
    # The workers of a job that ends neither leave nor join.
    assert hell.joins > hell.leaves
    slower = predicted("hell+fill", actual="exact")
    assert slower.outcome.mean_completion_s > hell.outcome.mean_completion_s


def test_one_job_takes_its_work_over_the_throughput_of_all_slots():
    alone = predicted("equi", jobs=1)
    (job,) = plan(1).trace.jobs
    rate = PROFILE.models(16)["hybrid"].of(job.workload.name)[15]
    assert alone.outcome.mean_completion_s == pytest.approx(int(job.workload.total_samples) / rate, rel=1e-6)
    assert (alone.joins, alone.leaves) == (16, 0)


def test_costs_of_changes_delay_a_job_by_its_joins_and_half_a_cycle():
    asked, (job,) = plan(1), plan(1).trace.jobs
    told = PROFILE.models(16)["hybrid"]
    free = predict(asked, "equi", told, told).outcome
    costs = ChangeCosts(10**8, {job.workload.name: 3 * 10**8})
    assert predict(asked, "equi", told, told, costs).outcome.end_ns == [free.end_ns[0] + 10**8 + 15 * 10**7]
    # Workers that stay cost nothing: with two jobs, less than a join of all for each start.
    asked = plan(2)
    costs = ChangeCosts(10**8, {kind.name: 0 for kind in KINDS})
    found = predict(asked, "equi", told, told, costs)
    holds_ns = [span.hold_ns for span in found.outcome.spans]
    assert holds_ns[0] == 10**8
    assert all(0 <= hold_ns <= 10**8 for hold_ns in holds_ns)
    assert any(hold_ns < 10**8 for hold_ns in holds_ns)


def test_kept_records_come_back_as_they_were_and_are_told_apart():
    run = MalleableRun(
        "k",
        "equi",
        (Span("j0", (0, 1), 5, 9),),
        2,
        1,
        (0.1, 0.2),
        (0.01,),
        1.5,
        ("j0: worker 0: x",),
        0.1,
        0.5,
    )
    profile = replace(PROFILE, rates={"NiN": (1.0, 2.0)})
    assert parse_kept(run.line().encode()) == run
    assert parse_kept(profile.line().encode()) == profile
    assert list(profile.models(2)) == ["hybrid", "exact", "measured"]
    for line in (b"{}", b'{"type": "run"}', b'{"type": "profile", "key": "p"}', b"[]"):
        with pytest.raises((ValueError, TypeError)):
            parse_kept(line)


def test_the_document_is_json_and_has_a_row_a_job():
    asked = plan(3)
    told = PROFILE.models(16)["hybrid"]
    found = predict(asked, "hell+fill", told, told)
    run = MalleableRun("k", "hell+fill", found.outcome.spans, 48, 0, (0.1,), (), 1.0, (), 0.0, 0.5)
    compared = AsyncComparison(
        run, RatesOutcome.of(asked.trace, run.policy, SHAPE.cluster(), run.spans), {"hybrid": found}
    )
    (policy,) = json.loads(json.dumps(document(asked, PROFILE, [compared]), allow_nan=False))["policies"]
    assert policy["predicted"]["hybrid"]["difference"] == 0
    assert [job["job"] for job in policy["jobs"]] == ["j0", "j1", "j2"]
    assert policy["leave_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "--jobs: expected 1 to 60, got 0"),
        (["--load", "1.5"], "--load: expected more than 0 and up to 1, got 1.5"),
        (["--scale", "0"], "--scale: expected more than 0 and up to 1000, got 0.0"),
        (
            ["--throughput", "measured"],
            "--throughput: expected --table with measured, got measured without it",
        ),
        (["--policies", "drs"], "--policies: expected srpt, .*, got 'drs'"),
        (["--updates", "3"], "--updates: expected 4 or more, got 3"),
        (["--hosts", "25"], "--hosts: expected 1 to 24, got 25"),
        (["--slots", "0"], "--slots: expected 1 to 64, got 0"),
        (["--seed", "-1"], "seed: expected 0 or more, got -1"),
    ],
)
def test_bad_usage_names_the_argument(arguments, message, capsys):
    assert main(["async-jobs", *arguments]) == 2
    import re

    assert re.search(message, capsys.readouterr().err)


def test_a_model_that_the_lab_does_not_have_is_named(tmp_path, capsys):
    table = tmp_path / "jobs.csv"
    table.write_text("arrival_units,model,epochs\n0,ResNet,10\n")
    assert main(["async-jobs", "--trace", str(table)]) == 2
    assert "jobs.csv:2: model: 'ResNet' is not in the set of models" in capsys.readouterr().err


def test_nominal_service_times_follow_the_link():
    (nin, *_) = KINDS
    found = nin.nominal(LINK)
    assert found == ServiceTimes(0.24, found.uplink_s, 0.002, found.uplink_s)
    assert found.uplink_s == pytest.approx(50_000 * 8 / 40e6, rel=0.06)
