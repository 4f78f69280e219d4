"""The prediction of a live run in rounds, the comparison of starts, and the arguments of the command."""

from fractions import Fraction
from pathlib import Path

import pytest

from bench.cli.compare_jobs import is_contention
from bench.cli.main import main
from bench.lab.two_tier import TwoTier
from bench.live_jobs.contention import ContentionComparison, RoundsPlan, predict
from bench.live_jobs.contention_service import JobStart, ServiceRun
from bench.live_jobs.contention_table import SAMPLES, nominal_table
from placement.traces.contention import read_trace

SHAPE = TwoTier(racks=4, servers=1, slots=1, oversubscription=Fraction(1))
HEADER = "job_id,arrival_s,model,gpus,total_samples\n"
EXAMPLE = Path(__file__).parents[4] / "docs" / "traces" / "live-contention.csv"


def planned(tmp_path, rows, policy):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + rows)
    return RoundsPlan(read_trace(str(path), nominal_table()), (policy,), SHAPE, 10.0)


def test_every_start_costs_and_a_shorter_job_that_arrives_stops_a_longer_one(tmp_path):
    # quiet on 4 GPUs: 80 samples/s alone. a: 60 s of work; b: 10 s, arrives at 20 s.
    plan = planned(tmp_path, "a,0,quiet,4,4800\nb,20,quiet,4,800\n", "srsf-first-full")
    found = predict(plan, nominal_table(), "srsf-first-full", 4.0)
    servers = ("r0s0", "r1s0", "r2s0", "r3s0")
    assert found.starts == (
        JobStart("a", 0, servers, 0),
        JobStart("b", 0, servers, 2),
        JobStart("a", 1, servers, 4),
    )
    # b: 4 s to start and 10 s; a: 16 s done in the first 20 s, so 44 s left after another 4 s from 40 s on.
    assert found.end_s == pytest.approx({"b": 34.0, "a": 88.0})


def test_starts_are_compared_by_job_number_and_servers_and_times_by_completion(tmp_path):
    plan = planned(tmp_path, "a,0,quiet,2,800\nb,10,quiet,2,800\n", "greedy")
    predicted = predict(plan, nominal_table(), "greedy", 0.0)
    moved = (predicted.starts[0], JobStart("b", 0, ("r0s0", "r3s0"), 2))
    live = ServiceRun(moved, {"a": 22.0, "b": 31.0}, 0, (), {})
    found = ContentionComparison("greedy", plan.trace, live, predicted, 2.5)
    assert predicted.end_s == pytest.approx({"a": 20.0, "b": 30.0})
    assert (found.same_starts, found.same_order) == (1, True)
    assert found.jct_ratios == pytest.approx({"a": 1.1, "b": 1.05})
    document = found.document()
    assert document["median_jct_difference"] == pytest.approx(0.075)
    assert (document["mean_jct_s"], document["predicted_mean_jct_s"]) == pytest.approx((21.5, 20.0))


def test_the_trace_of_the_documentation_has_24_jobs_of_the_lab_s_models():
    trace = read_trace(str(EXAMPLE), nominal_table())
    assert len(trace.jobs) == 24
    trace.check_rows(nominal_table())
    assert max(job.samples for job in trace.jobs) > SAMPLES, (
        "counts of samples are traffic: no more than here"
    )
    assert is_contention(str(EXAMPLE))
    assert not is_contention(str(EXAMPLE.with_name("live-jobs.csv")))


@pytest.mark.parametrize(
    ("row", "arguments", "text"),
    [
        ("a,0,GPT,2,80\n", [], "expected loud, quiet, got"),
        ("a,0,loud,8,80\n", [], "expected loud on 2, 4 GPUs, got"),
        ("a,0,loud,2,80\n", ["--round", "0"], "--round: "),
        ("a,0,loud,2,80\n", ["--racks", "2"], "--racks, --slots: expected 4 and 2 or more, got 2 and 4"),
        ("a,0,loud,2,80\n", ["--policies", "no-such"], "no-such"),
        ("a,0,loud,2,80\n", ["--table", "/no/such"], "/no/such"),
    ],
)
def test_bad_usage_ends_with_status_2(tmp_path, capsys, row, arguments, text):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + row)
    assert main(["compare", "--trace", str(path), *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--repeat=3", "--speed=9", "--servers=2"])
@pytest.mark.parametrize("kind", [["contention"], []])
def test_arguments_of_other_comparisons_are_refused(tmp_path, capsys, kind, argument):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "a,0,loud,2,80\n")
    assert main(["compare", *kind, f"--trace={path}", argument]) == 2
    assert f"compare contention: unrecognized arguments: {argument}" in capsys.readouterr().err
