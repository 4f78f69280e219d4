"""Whole jobs at the size of the lab, the cost of their starts, and runs beside their predictions."""

import argparse
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from bench.cli import main as cli
from bench.cli.compare_jobs import add_parsers, is_whole_jobs, scale_of
from bench.lab.two_tier import TwoTier, two_tier
from bench.live_jobs.comparison import write_results
from bench.live_jobs.lab_scale import BATCH, STEP_NS, LabScale
from bench.live_jobs.span_terms import SpanTerms, span_terms
from bench.live_jobs.start_cost import MeasuredCosts, parse_costs
from bench.live_jobs.whole_jobs import (
    JobsPlan,
    LiveRun,
    compare_jobs,
    compared,
    document,
    outcomes,
)
from mltcp.core.errors import UsageError
from placement.experiments.run_journal import kept_runs
from placement.model.throughput import RingAllReduce
from placement.simulator.rates.outcome import Span
from placement.simulator.rates.run import StartCost
from placement.traces.deadlines import WORKLOADS, DeadlineJob, DeadlineTrace, DrsMix, read

TRACES = Path(__file__).resolve().parents[4] / "docs" / "traces"
S = 10**9
SHAPE = TwoTier(4, 1, 4, oversubscription=Fraction(1))
SCALE = LabScale(SHAPE, Fraction(400))
COST = MeasuredCosts(StartCost(3 * S, S, first=True))


def plan(*policies, seed=3, jobs=12):
    trace = DrsMix(rate=10).trace(seed)
    return JobsPlan(SCALE.trace(replace(trace, jobs=trace.jobs[:jobs])), policies, SCALE, COST)


def as_measured(planned, policy):
    """The record of a run that went as predicted."""
    return LiveRun(planned.key(policy), policy, planned.predicted(policy).spans, ())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.name)
def test_a_workload_of_the_lab_has_the_run_time_and_the_communication_of_the_trace(workload):
    found = SCALE.workload(workload)
    assert abs(found.alone_ns - workload.alone_ns / 400) <= STEP_NS / 2
    assert (found.compute_ns, found.batch, found.samples % BATCH) == (STEP_NS, BATCH, 0)
    lab = SCALE.settings().model.communication_ns(found, 8, one_node=False) / STEP_NS
    paper = RingAllReduce().communication_ns(workload, 8, one_node=False) / workload.compute_ns
    assert lab == pytest.approx(paper, rel=1e-3)


def test_the_rate_inside_a_host_is_that_of_the_shape():
    assert SHAPE.loopback is None
    shape = replace(SHAPE, inside_bps=113_200_000)
    assert shape.loopback.rate_bps == 4 * 113_200_000
    model = LabScale(shape).model
    assert model.between_bytes_per_s / model.inside_bytes_per_s == pytest.approx(0.6, rel=1e-3)
    assert {server.loopback for server in two_tier(shape).servers} == {shape.loopback}


@pytest.mark.parametrize("rate", ["0mbit", "26gbit", "117"])
def test_a_rate_inside_a_host_that_cannot_be_is_refused(rate):
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers())
    options = parser.parse_args(["jobs", "--trace", "x.csv", "--inside", rate])
    with pytest.raises(UsageError, match="--inside: expected a number with unit"):
        scale_of(options)


def test_a_service_is_told_the_speeds_that_are_predicted():
    planned = replace(plan("drs"), costs=MeasuredCosts(COST.start, Fraction(21, 20)), service=True)
    workload = planned.trace.jobs[0].workload
    speed = planned.told(workload)
    model = planned.scale.model
    for gpus, one_node in ((1, True), (4, True), (8, False)):
        step_ns = 1.05 * (workload.compute_ns + model.communication_ns(workload, gpus, one_node=one_node))
        assert float(speed.iteration_ns(gpus, one_node)) == pytest.approx(step_ns, rel=1e-6)
    assert planned.key("drs") != replace(planned, costs=COST).key("drs")


def test_a_trace_of_the_lab_runs_at_its_clock():
    job = DeadlineJob("a", 800 * S, WORKLOADS[0], 4000 * S)
    (found,) = SCALE.trace(DeadlineTrace("t", (job,), arrivals_ns=900 * S)).jobs
    assert (found.arrival_ns, found.deadline_ns) == (2 * S, 10 * S)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"speed": Fraction(0)}, "speed: expected more than 0 and up to 1000000, got 0.0"),
        (
            {"shape": TwoTier(2, 3, 4)},
            "servers: expected 1 a rack for whole jobs, whose racks are nodes, got 3",
        ),
    ],
)
def test_a_lab_that_cannot_be_is_refused(options, text):
    with pytest.raises(UsageError) as error:
        replace(SCALE, **options)
    assert str(error.value) == text


def test_a_start_holds_its_gpus_for_its_cost():
    cost = StartCost(3 * S, S)
    assert [cost.hold_ns(2, restarts) for restarts in (0, 1)] == [0, 5 * S]
    planned = plan("norm", jobs=1)
    (job,) = planned.trace.jobs
    (span,) = planned.predicted("norm").spans
    nodes = [gpu // 4 for gpu in span.gpus]
    allocation = tuple((node, nodes.count(node)) for node in sorted(set(nodes)))
    rate = planned.scale.settings().model.samples_per_ns(job.workload, allocation)
    assert span.hold_ns == 3 * S + len(span.gpus) * S
    assert span.end_ns - span.start_ns == span.hold_ns - (-job.workload.total_samples // rate)


def test_the_cost_is_read_from_a_measurement_or_a_number(tmp_path):
    assert parse_costs("6.5") == MeasuredCosts(StartCost(6_500_000_000, 0, first=True))
    file = tmp_path / "cost.json"
    rows = [
        {"case": "samples", "restarts": 3},
        {"case": "start on 4 ranks", "ranks": 4, "starts": 1, "start_s": 9.0},
    ]
    rows += [{"ranks": ranks, "start_s": 2.0 + ranks, "end_s": 0.5} for ranks in (1, 2, 4)]
    file.write_text(json.dumps({"benchmark": "restart", "results": rows}))
    assert parse_costs(str(file)) == MeasuredCosts(StartCost(2_500_000_000, 1_000_000_000, first=True))
    for content, text in (
        ("{", f"--restart-cost: {file}: Expecting property name"),
        *(
            (
                f'{{"results": [{rows}]}}',
                "--restart-cost: expected a result of mltcp-bench cost restart with stops",
            )
            for rows in (
                "",
                '{"ranks": 1, "start_s": NaN, "end_s": 1}',
                '{"ranks": 1, "start_s": 1e400, "end_s": 1}',
                '{"ranks": 0, "start_s": 1, "end_s": 1}',
                '{"ranks": 1, "start_s": -2, "end_s": 1}',
            )
        ),
    ):
        file.write_text(content)
        with pytest.raises(UsageError) as error:
            parse_costs(str(file))
        assert str(error.value).startswith(text)
    with pytest.raises(
        UsageError, match=r"expected seconds, or the file of mltcp-bench cost restart -o, got '?-1"
    ):
        parse_costs("-1")


@pytest.mark.parametrize("policy", ["drs", "elastic-mh"])
def test_a_run_that_goes_as_predicted_differs_in_nothing(policy):
    planned = plan(policy)
    found = compared(planned, as_measured(planned, policy))
    assert set(found.differences) == {0.0}
    assert max(found.differences_on_measured_gpus) < 1e-6
    assert policy == "drs" or found.measured.restarts > 0


@pytest.mark.parametrize("start_s", [0, 1, 3])
def test_drs_migrates_in_the_trace_for_it_whatever_starts_cost(start_s):
    scale, costs = LabScale(SHAPE, Fraction(300)), MeasuredCosts(StartCost(start_s * S, S // 2, first=True))
    trace = read(TRACES / "live-migration.csv", WORKLOADS, DrsMix())
    planned = JobsPlan(scale.trace(trace), ("drs", "norm"), scale, costs)
    assert planned.predicted("drs").migrations >= 2
    assert planned.predicted("norm").migrations == 0


def test_kept_runs_are_reported_and_not_run_again(tmp_path):
    planned = plan("drs", "edf")
    ended = []
    with kept_runs(tmp_path, LiveRun.from_line) as journal:
        for policy in planned.policies:
            journal.add(as_measured(planned, policy))
    with kept_runs(tmp_path, LiveRun.from_line) as journal:
        results = compare_jobs(planned, journal, lambda policy, job: ended.append(policy))
    assert ended == ["drs"] * 12 + ["edf"] * 12
    reported = document("drs", planned, results)
    assert [each["policy"] for each in reported["policies"]] == ["drs", "edf"]
    for each in reported["policies"]:
        assert {
            "guarantee_rate",
            "mean_wait_s",
            "mean_completion_s",
            "utilization_arrivals",
            "utilization",
        } <= set(each)
        (trace,) = each["traces"]
        assert (trace["seed"], trace["jobs"]) == (3, 12)
        assert each["predicted"]["traces"] == each["traces"]
        assert len(each["jobs"]) == 12
    written = write_results(
        tmp_path / "jobs.json", document("drs", planned, results[:1]), 4, 4, outcomes(results[:1])
    )
    names = ["jobs.json", "gantt-drs.svg", "gantt-drs-predicted.svg"]
    assert written == [str(tmp_path / name) for name in names]
    assert json.loads((tmp_path / "jobs.json").read_text())["setting"]["start_fixed_s"] == 3.0


def test_a_table_of_whole_jobs_is_told_from_the_other_traces(tmp_path):
    table = tmp_path / "jobs.csv"
    table.write_text("job_id, arrival_s,workload,alpha\na,0,AlexNet,1\n")
    assert is_whole_jobs(str(table))
    assert not is_whole_jobs("poisson")
    assert not is_whole_jobs(None)
    (tmp_path / "set.json").write_text('{"jobs": []}')
    assert not is_whole_jobs(str(tmp_path / "set.json"))
    assert len(read(table, WORKLOADS, DrsMix()).jobs) == 1


@pytest.mark.parametrize(
    "argument",
    [
        *("--change=0:3:2", "--repeat=3", "--control=reno", "--retry-busy=1", "--rate=100mbit", "--round=5"),
        "--combination=product",
    ],
)
def test_arguments_that_would_make_no_difference_are_refused(tmp_path, capsys, argument):
    table = tmp_path / "jobs.csv"
    table.write_text("job_id,arrival_s,workload,alpha\na,0,ResNet-50,1\n")
    assert cli.main(["compare", "--trace", str(table), argument]) == 2
    assert f"compare jobs: unrecognized arguments: {argument}" in capsys.readouterr().err


def journal(begin_s, ranks, steps_s, samples):
    """The journal of a run that spawned for 1 s, imported for 2, met for 0.5 and built for 0.25."""
    at = {"process": 1.0, "imported": 3.0, "rendezvous": 3.5, "resumed": 3.75}
    lines = [{"event": name, "monotonic_ns": round((begin_s + s) * S)} for name, s in at.items()]
    lines[-1]["samples_done"] = samples[0]
    written_s = begin_s + 3.75 + steps_s + 0.125
    fields = {"write_s": 0.125, "samples_done": samples[1], "ranks": ranks}
    return [*lines, {"event": "checkpoint", "monotonic_ns": round(written_s * S), **fields}]


def test_the_terms_of_a_span_are_read_from_the_journal_and_add_up_to_it():
    spans = (Span("a", (0, 4), 10 * S, 20 * S), Span("a", (0,), 30 * S, 42 * S), Span("b", (1,), 0, 5 * S))
    journals = {
        "a": [*journal(110, 2, 5.0, (0, 40)), *journal(130, 1, 6.0, (40, 60))],
        "b": journal(100, 1, 9.0, (0, 4))[:2],
    }
    first, second, cut = span_terms(spans, 4, 100 * S, journals.__getitem__)
    expected = {
        "spawn_ns": S,
        "import_ns": 2 * S,
        "rendezvous_ns": S // 2,
        "build_ns": S // 4,
        "write_ns": S // 8,
    }
    assert first == SpanTerms("a", 2, 2, 40, **expected, steps_ns=5 * S, end_ns=9 * S // 8)
    assert second == SpanTerms("a", 1, 1, 20, **expected, steps_ns=6 * S, end_ns=17 * S // 8)
    assert cut == SpanTerms("b", 1, 1, 0, spawn_ns=S, lost_ns=4 * S)
    for span, terms in zip(spans, (first, second, cut), strict=True):
        assert terms.overhead_ns + terms.steps_ns == span.end_ns - span.start_ns


@pytest.mark.parametrize("policy", ["drs", "elastic-mh"])
def test_a_prediction_with_the_costs_of_a_run_is_that_run(tmp_path, policy):
    """A run whose starts cost twice as much and whose steps take 1.25 times as long as was predicted."""
    planned = plan(policy)
    truth = MeasuredCosts(StartCost(6 * S, 2 * S, first=True), Fraction(5, 4))
    happened = planned.predicted(policy, truth)
    terms = []
    for span in happened.spans:
        nodes = len({gpu // 4 for gpu in span.gpus})
        steps_ns = span.end_ns - span.start_ns - span.hold_ns
        at_pace = SpanTerms(span.job, len(span.gpus), nodes, samples=1)
        samples = round(steps_ns / planned.step_ns(at_pace) / truth.pace)
        terms.append(replace(at_pace, samples=samples, build_ns=span.hold_ns, steps_ns=steps_ns))
    found = compared(planned, LiveRun(planned.key(policy), policy, happened.spans, (), (), tuple(terms)))
    assert float(found.costs.pace) == pytest.approx(1.25, rel=5e-3)
    assert found.costs.start.hold_ns(4, 0) == pytest.approx(14 * S, rel=1e-6)
    measured, predicted = (sum(each[side] for each in found.mean_terms.values()) for side in (0, 1))
    assert measured == pytest.approx(found.measured.mean_completion_s)
    assert predicted == pytest.approx(found.predicted.mean_completion_s)
    assert found.afterwards.mean_completion_s == pytest.approx(found.measured.mean_completion_s, rel=0.02)
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(document("drs", planned, [found])))
    assert parse_costs(str(file)).document() == pytest.approx(found.costs.document())
    file.write_text('{"measured": {"start_fixed_s": 1, "start_per_gpu_s": 1, "pace": 0}}')
    with pytest.raises(UsageError, match="expected a result of"):
        parse_costs(str(file))
