"""Sweeps of asynchronous jobs without a lab: names, keys, figures against the model, pictures, and bad input."""

import json
from array import array
from dataclasses import replace

import pytest

from bench.async_sgd.comparison import compare, document, print_report
from bench.async_sgd.lab import star
from bench.async_sgd.pictures import _setting, link_figure, throughput_figure, write_pictures
from bench.async_sgd.run import (
    AsyncRun,
    DirectionShare,
    Excerpt,
    KernelIterations,
    direction_share,
    excerpt,
    run_from_line,
)
from bench.async_sgd.sweep import AsyncSweep, Ratio, parse_variant, parse_variants, parse_workers
from bench.cli.main import main
from bench.lab.bottleneck import DirectionUse, LinkUse
from bench.lab.link import Link
from bench.workloads.parameter_server.job import ReplayWork
from bench.workloads.parameter_server.log import CycleTimes
from mltcp.core.errors import MltcpError, UsageError
from placement.model.queueing import Method, throughputs
from placement.model.service_times import ServiceTimes

LINK = Link(20_000_000, 60_000)
SWEEP = AsyncSweep(
    ReplayWork(500_000, 0.085, 0.052), (1, 2), parse_variants("cubic,mltcp_reno"), LINK, repeat=2
)
TIMES = CycleTimes(0.085, 0.207, 0.0, 0.052, 0.207)
SERVICE = ServiceTimes(0.085, 0.207, 0.052, 0.207)


def run(workers=1, control="cubic", repeat=0, rate=None, times=TIMES):
    share = DirectionShare(0.5, 0.1, 3, 4)
    rows = tuple(tuple(100 * worker for _ in range(5)) for worker in range(workers))
    rate = rate or workers / TIMES.cycle_s
    key = f"{workers}/{control}/{repeat}"
    return AsyncRun(
        key, workers, control, repeat, 100, rate, workers - 1.0, times, 2, share, share,
        Excerpt(0.02, LINK.rate_bps, rows, rows), None, 0, 1.5, 0.01,
    )  # fmt: skip


def test_a_run_survives_its_line():
    iterations = {"worker": KernelIterations(2, 1, 500_000, 0.1, 20)}
    for each in (run(3), replace(run(2), losses=(0.5, 0.25), kernel=iterations)):
        assert run_from_line(each.line().encode()) == each


@pytest.mark.parametrize("line", [b"[]", b"{}", b"nonsense", b'{"key": 1}'])
def test_other_lines_are_refused(line):
    with pytest.raises((ValueError, TypeError)):
        run_from_line(line)


def test_a_control_is_compared_with_the_predictions_from_its_own_profile():
    slower = CycleTimes(0.1, 0.2, 0.01, 0.05, 0.2)
    runs = [run(1), run(2), run(2, repeat=1, rate=3.0), run(1, "reno", times=slower), run(2, "reno")]
    cubic, reno = compare(runs)
    assert cubic.profile == SERVICE
    assert reno.profile == ServiceTimes(0.1, 0.2, 0.01 + 0.05, 0.2)
    two = cubic.cells[1]
    assert two.workers == 2
    assert two.throughput == pytest.approx((2 / 0.551 + 3.0) / 2)
    assert two.bound == pytest.approx(2 / 0.551)
    assert two.load == pytest.approx(2 * 0.207 / 0.551)
    for method, predicted in two.predicted.items():
        assert predicted == throughputs(SERVICE, 2, method=method)[1]
    assert two.error(Method.EXACT) == pytest.approx(two.predicted[Method.EXACT] / two.throughput - 1)
    error = abs(two.error(Method.EXACT))
    assert cubic.errors(Method.EXACT) == pytest.approx({"min": error, "mean": error, "max": error})


def test_a_control_without_a_profile_has_that_of_the_others_and_a_given_one_is_divided_among_servers():
    assert compare([run(2, "reno"), run(1)])[0].profile == SERVICE
    given = compare([run(2)], SERVICE, (0.5, 0.5))[0].profile
    assert given == SERVICE.split(2)
    with pytest.raises(MltcpError, match="profile: expected a run with one worker"):
        compare([run(2)])


def test_report_document_and_pictures(tmp_path, capsys):
    comparisons = compare(
        [run(k, control, repeat) for k in (1, 2, 3) for control in ("cubic", "reno") for repeat in (0, 1)]
    )
    print_report(comparisons)
    assert "mean error from two workers on: exact" in capsys.readouterr().out
    found = json.loads(json.dumps(document(comparisons)))
    assert [each["control"] for each in found["controls"]] == ["cubic", "reno"]
    assert [cell["workers"] for cell in found["controls"][0]["cells"]] == [1, 2, 3]
    assert len(found["controls"][0]["cells"][0]["repeats"]) == 2
    paths = write_pictures(comparisons, tmp_path)
    assert [path.name for path in paths] == ["throughput.png", "link-2.png", "link-3.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_pictures_name_the_conditions_and_their_axes():
    comparisons = compare([run(k) for k in (1, 2)])
    setting = _setting(comparisons, acks_first=True)
    assert setting == "S^W 85 ms, acknowledgements first"
    assert _setting(comparisons, acks_first=False) == "S^W 85 ms"
    figures = throughput_figure(comparisons, setting), link_figure(comparisons, 2, setting)
    assert [figure.texts[0].get_text() for figure in figures] == [
        f"Asynchronous SGD: throughput, {setting}",
        f"Use of the link, 2 workers, {setting}",
    ]
    assert figures[1].get_supylabel() == "share of the rate of the link"
    assert figures[1].axes[-1].get_xlabel() == "seconds"


def test_the_points_of_a_sweep_are_interleaved_and_their_keys_tell_all_conditions_apart():
    points = list(SWEEP.points())
    assert [(p.repeat, p.workers, p.variant.name) for p in points[:4]] == [
        (0, 1, "cubic"), (0, 1, "mltcp_reno"), (0, 2, "cubic"), (0, 2, "mltcp_reno"),
    ]  # fmt: skip
    others = [
        SWEEP,
        replace(SWEEP, work=ReplayWork(500_000, 0.6, 0.052)),
        replace(SWEEP, link=Link(20_000_000, 300_000)),
        replace(SWEEP, updates=100),
        replace(SWEEP, seed=1),
        replace(SWEEP, backend="gloo"),
    ]
    keys = {sweep.key(point) for sweep in others for point in sweep.points()}
    assert len(keys) == len(others) * len(points)
    # More repeats or controls do not change the runs that there are.
    assert SWEEP.key(points[0]) == replace(SWEEP, repeat=5, workers=(1,)).key(points[0])


def test_the_workers_of_a_repeat_start_alike_under_all_controls():
    first, second, *_ = (p for p in SWEEP.points() if p.workers == 2)
    assert SWEEP.offsets_s(first, 1.0) == SWEEP.offsets_s(second, 1.0)
    assert all(0 <= offset < 1 for offset in SWEEP.offsets_s(first, 1.0))


def test_variants():
    variant = parse_variant("mltcp_reno@remaining:ratio=job")
    assert variant.ratio is Ratio.JOB
    assert variant.policy == replace(parse_variant("mltcp_reno@remaining").policy, name=variant.policy.name)
    assert parse_variant("mltcp_cubic").ratio is Ratio.WORKER
    assert not parse_variant("cubic").of_mltcp
    together = parse_variant("mltcp_reno@together:remaining:ratio=job")
    assert (variant.in_turn, together.in_turn) == (True, False)
    assert replace(together, name=variant.name, policy=variant.policy, in_turn=True) == variant
    assert parse_variant("cubic@together").policy.control == "cubic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cubic@ratio=job", "ratio= after"),
        ("mltcp_reno@ratio=none", "ratio: expected worker, job, flow, got 'none'"),
        ("isolated", "expected congestion controls, got 'isolated'"),
        ("dcqcn", "expected congestion controls, got 'dcqcn'"),
    ],
)
def test_other_variants_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_variant(text)


@pytest.mark.parametrize(("text", "found"), [("1..3", (1, 2, 3)), ("5,2,2..3", (2, 3, 5)), ("16", (16,))])
def test_numbers_of_workers(text, found):
    assert parse_workers(text) == found


def test_each_worker_is_a_job_of_its_own_in_the_lab():
    topology = star(3, 2, LINK)
    assert topology.jobs == (0, 1, 2)
    assert [trunk.left for trunk in topology.trunks] == ["ps0", "ps1"]
    with pytest.raises(UsageError, match="workers: expected 1 to 24, got 25"):
        star(25, 1, LINK)


def test_the_shares_of_time_in_which_workers_send():
    bin_ns, full = 5_000_000, 12_500  # bytes of 5 ms at 20 Mbit/s
    # In bins of 20 ms: worker 0, both, worker 1, nobody.
    rows = {
        0: array("I", [full] * 4 + [full // 2] * 4 + [0] * 8),
        1: array("I", [0] * 4 + [full // 2] * 4 + [full] * 4 + [0] * 4),
    }
    use = DirectionUse("ps0", "switch", "ps0", 20_000_000, rows, 0, 0, 0, 5, 7)
    share = direction_share(use, 2, range(16), bin_ns)
    assert share == DirectionShare(busy=3 / 4, overlap=1 / 3, drops=7, marks=5)
    whole = LinkUse(1_000_000_000, 80_000_000, bin_ns, (use, use))
    last = excerpt(whole, use, use, 2, end_s=1.08)
    assert last.up == ((4 * full, 2 * full, 0, 0), (0, 2 * full, 4 * full, 0))
    assert last.bin_s == 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers: expected numbers from 1 to 24, such as 1..8 or 1,2,5, got '0'"),
        (["--workers", "25"], "--workers: expected numbers from 1 to 24"),
        (["--workers", "2"], "--workers: expected 1 among the numbers, or --profile, got neither"),
        (["--worker-s=-1"], "--worker-s: expected a number of at least 0, got '-1'"),
        (["--server-s", "nan"], "--server-s: expected a number of at least 0, got 'nan'"),
        (["--jitter", "1"], "jitter: expected 0 <= jitter < 1, got 1.0"),
        (["--size", "0"], "--size: expected a number of bytes"),
        (["--shares", "0.5,0.6"], "shares: expected a sum of 1, got 0.5,0.6"),
        (["--updates", "3"], "--updates: expected 4 or more, got 3"),
        (["--repeat", "0"], "--repeat: expected 1 or more, got 0"),
        (["--controls", "nobody"], "nobody"),
        (["--rate", "0"], "--rate: expected a number"),
        (["--profile", "/none"], "/none: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_usage_is_named_with_status_2(arguments, message, capsys):
    assert main(["async", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "profile: expected an object, got []"),
        ('{"worker_s": 1, "uplink_s": 1, "server_s": -1, "downlink_s": 1}', "server_s: expected a number between 0"),
        ('{"worker_s": 1, "uplink_s": 1, "downlink_s": 1}', "server_s: expected a number of seconds, got none"),
    ],
)  # fmt: skip
def test_a_bad_profile_is_named_with_status_2(content, message, tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text(content)
    assert main(["async", "--workers", "2", "--profile", str(path)]) == 2
    assert message in capsys.readouterr().err
