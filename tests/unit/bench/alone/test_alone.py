"""The cells, the plan and the table of `mltcp-bench alone`, and the traffic of its two ends over the loopback."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from bench.alone.arm import Arm, Detection
from bench.alone.cell import BASES, AloneCell, default_cells
from bench.alone.path import RelayStatistics
from bench.alone.report import comparisons, document, print_report
from bench.alone.round import AlonePlan, AloneRound, round_from_line, round_key, turns
from bench.alone.sender import SenderTask, SentIteration
from bench.cli.main import main
from bench.compare.approach import parse_policy
from mltcp.core.address import free_port
from mltcp.core.errors import UsageError

CELL = AloneCell("cell", 10**9, 0.01, 0.35, 25_000_000)
CONTROL = parse_policy("mltcp_reno", "cubic")


def sent(seconds, marks=0, busy=0.5):
    return SentIteration(seconds, 10, 20, 10_000, 9_900, 1, marks, (busy, 0.1))


def arm(control, seconds, *, marks=0, busy=0.5, relay=None, other_load=0.0, counted=2, known=3):
    iterations = (sent(seconds, marks, busy), sent(seconds, marks, busy))
    detection = Detection(known, counted, 25_000_000, 0.2) if control.startswith("mltcp") else None
    return Arm(control, (sent(9.0),), iterations, 0, 0, detection, relay, other_load)


def a_round(number, seconds, base_seconds=1.0, **changes):
    arms = (arm("reno", base_seconds), arm("mltcp_reno", seconds, **changes))
    return AloneRound(f"key{number}", CELL.name, number, "relay", True, arms)


def compared(*rounds, controls=(CONTROL,)):
    return comparisons(AlonePlan((CELL,), controls, len(rounds)), rounds)


def plan(*controls, cells=(CELL,), rounds=5):
    return AlonePlan(cells, tuple(parse_policy(name, "cubic") for name in controls), rounds)


def test_the_cells_span_what_users_have():
    cells = default_cells()
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.rate_bps / 1e9 for cell in cells} >= {0.1, 1, 2.5, 3, 5, 10}
    assert {cell.rtt_s for cell in cells} >= {0, 0.001, 0.005, 0.01, 0.05}
    assert min(cell.pause_s for cell in cells) == 0.05
    assert max(cell.pause_s for cell in cells) == 5
    assert min(cell.window_segments for cell in cells) < 10
    assert max(cell.window_segments for cell in cells) > 1000
    for name, values in {
        "flows": {1, 4},
        "offloads": {True, False},
        "slow_start_after_idle": {True, False},
        "receiver_ecn": {0, 2},
        "rto_min_s": {0.005, 0.2},
        "peer": {True, False},
    }.items():
        assert {getattr(cell, name) for cell in cells} == values, name
    assert {base for cell in cells for base in cell.bases} == set(BASES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rtt_s", 1),
        ("pause_s", 0),
        ("iteration_bytes", 1),
        ("flows", 0),
        ("tail_every", 0),
        ("receiver_ecn", 3),
        ("rto_min_s", 5),
    ],
)
def test_a_cell_refuses(field, value):
    with pytest.raises(UsageError, match=f"cell: {field}: expected"):
        replace(CELL, **{field: value})


def test_an_iteration_fits_the_queue_of_the_senders_own_nic_only():
    assert CELL.own_nic
    assert CELL.link.queue_bytes > CELL.iteration_bytes
    switch = replace(CELL, queue_bdp=0.5)
    assert not switch.own_nic
    assert switch.link.queue_bytes == 625_000
    assert not replace(CELL, mark_bdp=0.3).own_nic
    assert replace(CELL, mark_bdp=0.3).link.ecn_threshold_bytes == 375_000


def test_an_offloaded_packet_fits_the_smallest_queue_and_the_burst():
    link = replace(CELL, rate_bps=10**8, rtt_s=0.001, queue_bdp=0.1).link
    assert link.queue_bytes >= 2 * 65_536
    assert 65_536 < link.burst_bytes < 2 * 65_536


def test_variants_of_a_control_share_their_base():
    arms = plan("mltcp_reno", "mltcp_reno@start=keep", "mltcp_cubic").arms(CELL)
    assert [policy.name for policy in arms] == [
        "reno",
        "mltcp_reno",
        "mltcp_reno@start=keep",
        "cubic",
        "mltcp_cubic",
    ]


def test_a_cell_runs_the_controls_of_its_bases():
    dctcp = replace(CELL, bases=("bpf_dctcp",))
    assert [policy.name for policy in plan("mltcp_reno", "mltcp_dctcp").arms(dctcp)] == [
        "bpf_dctcp",
        "mltcp_dctcp",
    ]


@pytest.mark.parametrize(
    "arguments",
    [{"controls": ("cubic",)}, {"controls": ("mltcp_dctcp",)}, {"rounds": 0}, {"cells": (CELL, CELL)}],
)
def test_a_plan_refuses(arguments):
    given = {"controls": ("mltcp_reno",), **arguments}
    with pytest.raises(UsageError):
        plan(*given.pop("controls"), **given)


def test_each_control_is_first_in_some_round():
    policies = plan("mltcp_reno", "mltcp_cubic").arms(CELL)
    assert {turns(policies, number)[0] for number in range(4)} == set(policies)
    assert all(sorted(turns(policies, number), key=policies.index) == list(policies) for number in range(4))


def test_a_round_is_known_by_what_determines_it():
    policies = plan("mltcp_reno").arms(CELL)
    key = round_key(CELL, policies, 0)
    assert key == round_key(replace(CELL, name="other", bases=BASES), policies, 0)
    others = [
        round_key(CELL, policies, 1),
        round_key(replace(CELL, pause_s=1.5), policies, 0),
        round_key(CELL, policies[:1], 0),
    ]
    assert key not in others


def test_a_round_comes_back_from_its_line():
    given = a_round(3, 1.2, relay=RelayStatistics(1, 2, 3, 4.0, 5.0, 6.0, 0.7))
    assert round_from_line(given.line().encode()) == given


@pytest.mark.parametrize("line", [b"[]", b"{}", b"no", b'{"arms": [{}]}', b'{"arms": []}'])
def test_what_is_no_round_is_refused(line):
    with pytest.raises((ValueError, TypeError)):
        round_from_line(line)


def test_the_result_is_the_median_of_ratios_within_rounds():
    # The machine is slower in the third round, for both.
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.005), a_round(2, 3.03, base_seconds=3.0))
    assert found.ratio == pytest.approx(1.005)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.01))
    assert found.met is True
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.02), a_round(2, 1.02))
    assert found.met is False


def test_a_round_in_which_the_relay_lagged_does_not_count():
    late = RelayStatistics(1000, 0, 3, 10_000.0, 13_000.0, 14_000.0, 0.1)
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.0), a_round(2, 9.0, relay=late))
    assert found.met is True
    assert (found.valid, found.rounds, found.fault) == (2, 3, "the relay lagged")
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.0, relay=late))
    assert found.met is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"lost": 1}, "the relay lagged"),
        ({"dropped": 1}, "the relay lagged"),
        ({"p99_us": 12_600.0}, "the relay lagged"),
        ({"p99_us": 12_500.0}, None),
        ({"median_us": 10_600.0}, "the relay lagged"),
        ({"median_us": 9_400.0}, "the relay lagged"),
        ({"median_us": 10_500.0}, None),
    ],
)
def test_a_relay_lags_when_it_loses_or_is_late(changes, fault):
    relay = replace(RelayStatistics(1000, 0, 3, 10_000.0, 10_050.0, 10_100.0, 0.1), **changes)
    assert arm("reno", 1.0, relay=relay).fault(CELL) == fault


def test_a_saturated_processor_is_the_jobs_own_only_while_nobody_else_runs():
    assert arm("reno", 1.0, busy=1.0).fault(CELL) == "a processor was saturated"
    assert arm("reno", 1.0, busy=1.0, other_load=0.4).fault(CELL) is None


def test_an_unrecognised_job_is_told():
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.0, known=None))
    assert found.recognised_after is None
    (found,) = compared(a_round(0, 1.0), a_round(1, 1.0, known=4))
    assert found.recognised_after == 4


def test_the_table_and_the_document_have_every_comparison(capsys):
    rounds = [a_round(0, 1.0), a_round(1, 1.2, counted=4)]
    found = compared(*rounds)
    print_report(found, rounds)
    printed = capsys.readouterr().out
    assert "mltcp_reno" in printed
    assert "6 of 4" in printed
    text = json.loads(json.dumps(document(found, rounds), allow_nan=False))
    assert text["comparisons"][0]["met"] is False
    assert text["comparisons"][0]["cell"]["name"] == "cell"
    assert len(text["rounds"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cells", "moon"], ["moon", "1g-10ms"]),
        (["--cells", "1g-1ms", "--rate", "1gbit"], ["--cells", "--rate"]),
        (["--controls", "cubic"], ["--controls", "mltcp_cubic"]),
        (["--controls", "mltcp_reno@start=now"], ["now", "keep"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--iterations", "0"], ["iterations"]),
        (["--rate", "fast"], ["fast", "mbit"]),
        (["--rate", "1gbit", "--rtt", "7"], ["rtt_s"]),
        (["--rate", "1gbit", "--tail-loss", "1:x"], ["--tail-loss"]),
        (["--rate", "1gbit", "--bytes", "lots"], ["--bytes"]),
    ],
)
def test_the_command_refuses(arguments, words, capsys):
    assert main(["alone", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err


def test_the_cells_are_listed(capsys):
    assert main(["alone", "--cells", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(cell.name in printed for cell in default_cells())


@pytest.mark.parametrize("flows", [1, 3])
def test_the_two_ends_send_and_answer_iterations(flows):
    port = free_port()
    processor = min(os.sched_getaffinity(0))
    receiving = ["", "127.0.0.1", str(port), str(flows), "200000", "reno", str(processor)]
    with subprocess.Popen(
        [sys.executable, "-m", "bench.alone.receiver", *receiving], stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout.readline() == "listening\n"
        task = SenderTask(None, "127.0.0.1", processor, "127.0.0.1", port, flows, 200_000, 0.05, 4)
        done = subprocess.run(
            [sys.executable, "-m", "bench.alone.sender", json.dumps(asdict(task))],
            input="begin\n",
            capture_output=True,
            text=True,
            check=True,
        )
        assert receiver.wait(60) == 0
    iterations = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(iterations) == 4
    assert all(each["seconds"] > 0 for each in iterations)
    assert all(each["cwnd"] >= 10 for each in iterations)
    assert len(iterations[0]["busy"]) == os.cpu_count()
