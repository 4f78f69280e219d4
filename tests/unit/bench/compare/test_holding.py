import json
from dataclasses import replace

import pytest

from bench.cli.main import main
from bench.compare.approach import Approach, parse_policy
from bench.compare.contest import Contest
from bench.compare.holding import (
    HoldingOutcome,
    HoldingSweep,
    document,
    held_slowdown,
    holding_result,
    holding_run,
    parse_mismatches,
)
from bench.compare.results.journal import write_result
from bench.compare.results.results import compare_result
from bench.compare.results.runs import ApproachRun, JobRun, Measured
from bench.lab.link import Link
from bench.workloads.profile import load
from mltcp.core.errors import MltcpError, UsageError

LINK = Link(300_000_000, 300_000, 40_000, 1500)
ITERATIONS = 20


def job(name, period_s, iteration_s=None, marks=0):
    began = tuple(period_s * number for number in range(ITERATIONS))
    times = (iteration_s or period_s,) * ITERATIONS
    return JobRun(name, "reno", times, began, 0.0, began[-1] + period_s, marks, 0)


def run(approach, *periods_s, repeat=0, **values):
    jobs = tuple(job(f"j{number}", period_s) for number, period_s in enumerate(periods_s))
    return ApproachRun(approach, repeat, jobs, **values)


ALONE = {"j0": 1.0, "j1": 1.04}


@pytest.mark.parametrize(
    ("periods", "outcome"),
    [
        ((1.04, 1.04), HoldingOutcome.HELD),
        ((1.045, 1.04), HoldingOutcome.HELD),
        ((1.0, 1.04), HoldingOutcome.SLIPPED),
        ((1.2, 1.25), HoldingOutcome.SLIPPED),
        ((1.1, 1.1), HoldingOutcome.COLLIDED),
    ],
)
def test_outcomes_of_two_jobs_whose_periods_are_four_percent_apart(periods, outcome):
    found = holding_run(run("reno", *periods), ALONE, 0.04)
    assert found.outcome is outcome
    assert found.period_difference == pytest.approx(max(periods) / min(periods) - 1)
    assert found.second_half == pytest.approx((periods[0] / 1.0 + periods[1] / 1.04) / 2)


def test_equal_jobs_hold_unless_they_collide():
    alone = {"j0": 1.0, "j1": 1.0}
    assert holding_run(run("reno", 1.01, 1.01), alone, 0.0).outcome is HoldingOutcome.HELD
    assert holding_run(run("reno", 1.4, 1.4), alone, 0.0).outcome is HoldingOutcome.COLLIDED


def test_the_first_half_does_not_count():
    slow_start = tuple([1.5] * (ITERATIONS // 2) + [1.04] * (ITERATIONS // 2))
    jobs = tuple(replace(one, iteration_s=slow_start) for one in run("reno", 1.04, 1.04).jobs)
    found = holding_run(ApproachRun("reno", 0, jobs), ALONE, 0.04)
    assert found.outcome is HoldingOutcome.HELD
    assert found.slowdown > 1.2


def test_too_short_a_run_has_no_period():
    short = JobRun("j0", "reno", (1.0,) * 4, (0.0, 1.0, 2.0, 3.0), 0.0, 4.0, 0, 0)
    with pytest.raises(MltcpError, match="expected 5 or more iterations, got 4"):
        holding_run(ApproachRun("reno", 0, (short, replace(short, job="j1"))), ALONE, 0.04)


@pytest.mark.parametrize(
    ("mismatch", "jobs", "bound"),
    [(0.0, 3, 1.0), (0.05, 2, 1.025), (0.03, 3, (1.06 + 1.06 / 1.03 + 1) / 3)],
)
def test_the_bound_is_the_mean_of_all_at_the_longest_period(mismatch, jobs, bound):
    assert held_slowdown(mismatch, jobs) == pytest.approx(bound)


@pytest.mark.parametrize(("jobs", "fraction"), [(2, 0.43), (3, 0.86 / 3), (2, 0.3)])
def test_periods_differ_by_the_mismatch_and_bytes_do_not(jobs, fraction):
    sweep = HoldingSweep(load("vgg16"), jobs, (0.03,), None if fraction == 0.86 / jobs else fraction)
    works = sweep.works(0.03, LINK.rate_bps, 2)
    periods = [work.isolated_iteration_s(LINK.rate_bps, 2) for work in works]
    assert [period / periods[0] for period in periods] == pytest.approx(
        [1 + 0.03 * number for number in range(jobs)]
    )
    assert len({work.buckets_bytes for work in works}) == 1
    assert works[0].link_share(LINK.rate_bps, 2) == pytest.approx(fraction, rel=1e-3)


def contest_template():
    approaches = tuple(Approach(name, parse_policy(name, "cubic")) for name in ("isolated", "reno"))
    return Contest((), approaches, LINK, ITERATIONS)


def test_a_contest_for_each_mismatch():
    contests = HoldingSweep(load("vgg16"), 2, (0.0, 0.02)).contests(contest_template())
    assert [contest.name for contest in contests] == ["periods 0 % apart", "periods 2 % apart"]
    assert [contest.measured().setting["mismatch"] for contest in contests] == [0.0, 0.02]
    # Equal jobs are run alone once, different ones each for itself.
    assert [len(contest.groups(isolated=True)) for contest in contests] == [1, 2]


def measured(mismatch, *runs):
    return Measured(f"periods {mismatch}", {"mismatch": mismatch, "rate_bps": 300}, runs)


def swept():
    alone = run("isolated", 1.0, 1.04)
    return [
        measured(
            0.04,
            alone,
            run("reno", 1.0, 1.04),
            run("mltcp_reno", 1.04, 1.04, other_load=0.2),
            replace(alone, repeat=1),
            run("reno", 1.1, 1.1, repeat=1),
            run("mltcp_reno", 1.04, 1.04, repeat=1),
        )
    ]


def test_the_document_has_every_repeat():
    found = document(holding_result(swept()))
    assert (found["jobs"], found["setting"]) == (2, {"rate_bps": 300})
    (at,) = found["mismatches"]
    assert (at["mismatch"], at["bound"]) == (0.04, 1.02)
    reno, mltcp = at["policies"]
    assert (reno["held"], reno["slipped"], reno["collided"]) == (0, 1, 1)
    assert [one["outcome"] for one in mltcp["repeats"]] == ["held", "held"]
    assert mltcp["repeats"][0]["other_load"] == 0.2


def test_an_earlier_result_is_shown_and_drawn(tmp_path, capsys):
    path = write_result(compare_result(swept()), tmp_path)
    assert main(["holding", "--from", str(path), "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2" in printed
    assert "1.000 s  1.079 c" in printed
    assert "! other programs used 20% of the processors during: mltcp_reno, 4 %, repeat 1" in printed
    assert (tmp_path / "holding.png").read_bytes().startswith(b"\x89PNG")
    assert main(["holding", "--from", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "mltcp-bench/holding/1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mismatch", "0,x"], "--mismatch: expected percentages such as 0,1,3, got '0,x'"),
        (["--mismatch", ","], "--mismatch: expected one or more percentages"),
        (["--mismatch", "90"], "--mismatch: expected 0 to 50 (percent), got 90"),
        (["--mismatch", "nan"], "--mismatch: expected 0 to 50 (percent), got nan"),
        (["--jobs", "5"], "--jobs: expected 2 to 4, got 5"),
        (["--iterations", "4"], "--iterations: expected 5 or more, got 4"),
        (["--policies", "isolated"], "--policies: expected one or more congestion controls"),
        (["--policies", "nothing"], "nothing"),
        (["--fraction", "1.5"], "link share: expected above 0 and below 1, got 1.5"),
        (["--from", "/nowhere/result.json"], "/nowhere/result.json"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    assert main(["holding", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_result_of_another_command_is_refused(tmp_path, capsys):
    other = replace(swept()[0], setting={"rate_bps": 300})
    path = write_result(compare_result([other]), tmp_path)
    assert main(["holding", "--from", str(path)]) == 2
    assert "expected a result of mltcp-bench holding" in capsys.readouterr().err


def test_mismatches_are_percentages():
    assert parse_mismatches("0,2.5") == (0.0, 0.025)
    with pytest.raises(UsageError):
        parse_mismatches("a")
