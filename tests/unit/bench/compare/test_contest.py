"""Contests: the conditions that both commands record, which jobs run together, and when they start."""

import argparse

import pytest

from bench.cli import compare, contend, contest_arguments
from bench.compare.contest import contest_of
from mltcp.core.errors import UsageError

LINK = {"rate_bps", "queue_bytes", "ecn_threshold_bytes", "ecn_by", "mtu", "ranks", "iterations"}


def options(command, *arguments):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    name = command.__name__.rpartition(".")[2]
    return parser.parse_args([name, *(["contest"] if command is compare else []), *arguments])


def contended(*arguments):
    return contest_arguments.contest_of(options(contend, *arguments))


def compared(*arguments, **starts):
    given = options(compare, "--set", "fitted-snapshot1", *arguments)
    template = compare.template_of(given)
    (snapshot,) = compare.snapshots_of(given, template.link)
    return contest_of(snapshot, template, **starts)


def test_contend_records_its_conditions():
    setting = contended("--rate", "200mbit", "--perturb", "20:0.15").measured().setting
    own = {"stagger_s", "perturb", "seed", "overlap", "bytes_scale", "time_scale", "isolated_cc"}
    assert set(setting) == LINK | own
    assert (setting["rate_bps"], setting["perturb"]) == (200_000_000, "20:0.15")


def test_marks_may_be_a_ramp_as_of_switches():
    contest = contended("--ecn", "20kb-80kb-0.1", "--rate", "1gbit")
    link = contest.link
    assert (link.ecn_threshold_bytes, link.ecn_highest_bytes, link.ecn_probability) == (20_000, 80_000, 0.1)
    assert contest.measured().setting["ecn_highest_bytes"] == 80_000
    assert contended("--ecn", "20kb-20kb-1").link.ramp == contended("--ecn", "none").link.ramp == {}


@pytest.mark.parametrize(
    "ecn", ["80kb-20kb-0.1", "20kb-80kb", "20kb-80kb-2", "20kb-80kb-x", "-", "", "0", "20kb-1gb-1"]
)
def test_a_ramp_that_is_none_is_refused(ecn):
    with pytest.raises(UsageError, match=r"--ecn|ecn_"):
        contended("--ecn", ecn)


def test_a_dilation_makes_times_longer_and_bytes_as_many_times_as_large():
    once, thrice = compared(), compared("--dilate", "3")
    for (_, work), (_, longer) in zip(once.jobs, thrice.jobs, strict=True):
        assert longer.sent_bytes == pytest.approx(3 * work.sent_bytes, rel=1e-3)
        assert longer.isolated_iteration_s(3e8, 2) == pytest.approx(
            3 * work.isolated_iteration_s(3e8, 2), rel=1e-3
        )
    for dilation in ("0", "-1", "nan", "1e9"):
        with pytest.raises(UsageError, match="--dilate: expected"):
            compared("--dilate", dilation)


def test_a_trace_may_be_drawn_on_a_lab_with_nics_as_asked_for():
    given = options(
        compare, "--trace", "poisson:jobs=3", "--rate", "40mbit", "--ecn", "30kb-90kb-0.2", "--dilate", "2"
    )
    source, plan = compare.trace_source_of(given), compare.trace_plan_of(given)
    nic = source.shape.nic
    assert (nic.rate_bps, nic.queue_bytes, nic.mtu, nic.ecn_highest_bytes) == (
        40_000_000,
        150_000,
        3000,
        90_000,
    )
    assert source.setting["ecn_probability"] == 0.2
    drawn = compare.trace_of(given, len(source.cluster.gpus))
    assert len(drawn.jobs) == 3
    assert drawn != compare.trace_of(options(compare, "--trace", "poisson:jobs=3", "--seed", "1"), 24)
    assert plan.scale_of(drawn).time == 2 * compare.trace_plan_of(options(compare)).scale_of(drawn).time
    for trace in ("poisson:job=3", "poisson:jobs=0", "dynamic:models=x", "other:jobs=3"):
        with pytest.raises(UsageError):
            compare.trace_of(options(compare, "--trace", trace), 24)


def test_compare_records_its_conditions():
    measured = compared("--repeat", "3").measured()
    own = {"topology", "repeat", "starts", "seed", "capacity_bps", "time_scale", "profiles"}
    assert set(measured.setting) == LINK | own
    assert (measured.setting["repeat"], measured.setting["profiles"]) == (3, "measured")
    assert (measured.name, measured.score) == ("fitted-snapshot1", 1.0)


def test_isolated_runs_are_one_for_each_kind_of_job():
    contest = contended("--jobs", "vgg16,resnet50,vgg16", "--policies", "isolated,cubic", "--repeat", "2")
    assert [name for name, _ in contest.jobs] == ["vgg16-1", "resnet50", "vgg16-2"]
    assert contest.groups(isolated=True) == [[0], [1]]
    assert contest.groups(isolated=False) == [[0, 1, 2]]
    assert contest.first_of_kind(2) == 0
    alone = contest.iterations_of(0) + contest.iterations_of(1)
    assert contest.total_iterations == 2 * (2 * alone + contest.iterations_of(2))


def test_jobs_start_later_one_by_one_or_at_random_times_that_all_policies_share():
    staggered = contended("--stagger", "0.5", "--repeat", "2")
    assert [staggered.start_s(1, index) for index in (0, 1)] == [0.0, 0.5]
    together, first, second = (compared(random_starts=random, seed=4) for random in (False, True, True))
    assert [together.start_s(0, index) for index in (0, 1)] == [0.0, 0.0]
    assert first.starts_s == second.starts_s
    assert first.start_s(0, 0) != first.start_s(1, 0)


def test_a_change_needs_its_job():
    assert compared("--change", "VGG16-1400:3:2").change.job == "VGG16-1400"
    assert not compared("--change", "VGG16-1400:3:2").measured_profiles
    with pytest.raises(UsageError, match="no job 'nobody'"):
        compared("--change", "nobody:3:2")
