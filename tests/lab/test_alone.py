"""`mltcp-bench alone` in a lab: the relay of acknowledgements, losses in a switch and of tails, and kept rounds."""

import json
import os
import signal
import subprocess
import sys

import pytest

from bench.alone.cell import AloneCell
from bench.alone.own_controls import own_controls, prefix_of
from bench.alone.round import run_round
from bench.compare.approach import parse_policy
from mltcp.ebpf.congestion_controls import available
from tests.lab.lab_commands import RunningCommand, left_in_labs
from tests.lab.test_detectors import kernel_skips_calls

pytestmark = pytest.mark.lab
ALONE = [sys.executable, "-m", "bench.cli", "alone"]
TAILS = ["--rate", "100mbit", "--rtt", "0.02", "--pause", "0.1", "--bytes", "200kb", "--no-offloads"]
TAILS += ["--tail-loss", "1", "--rto-min", "0.005", "--controls", "mltcp_reno"]
SHORT = {"warm_up": 1, "iterations": 2}


@pytest.fixture(scope="module")
def own():
    with own_controls([]) as loaded:
        yield loaded


def run(cell, own, *names):
    return run_round(cell, [parse_policy(name, "cubic") for name in names], 0, own).arms


def controls_of(pid):
    """The controls that a command has loaded; other programs may measure beside this test."""
    return [name for name in available() if name.startswith(prefix_of(pid))]


def test_a_table_is_measured_and_kept_and_nothing_is_left(tmp_path):
    command = [*ALONE, *TAILS, "--iterations", "2", "--rounds", "1", "--json", "-o", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, error = process.communicate()
    assert process.returncode == 0, error
    assert not controls_of(process.pid)
    document = json.loads(output)
    (compared,) = document["comparisons"]
    assert (compared["control"], compared["base"], compared["rounds"]) == ("mltcp_reno", "reno", 1)
    (found,) = document["rounds"]
    assert {arm["control"] for arm in found["arms"]} == {"reno", "mltcp_reno"}
    for arm in found["arms"]:
        # Each of the four iterations of the warm-up and of the two that count lost its last segment.
        assert arm["tail_drops"] == 6
        assert all(each["retransmits"] >= 1 for each in arm["counted"])
        assert all(each["seconds"] >= 0.02 + 200_000 * 8 / 100e6 for each in arm["counted"])
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == document


def test_acknowledgements_are_late_by_the_round_trip(own):
    (arm,) = run(AloneCell("late", 10**8, 0.05, 0.05, 100_000, **SHORT), own, "reno")
    assert arm.counted[-1].min_rtt_us >= 0.95 * 50_000
    if arm.relay is not None:
        assert arm.relay.median_us >= 0.95 * 50_000
        assert arm.relay.lost == arm.relay.dropped == 0


def test_a_switch_loses_what_its_queue_does_not_hold(own):
    cell = AloneCell("losses", 10**8, 0.01, 0.05, 2_000_000, offloads=False, queue_bdp=0.3, **SHORT)
    (arm,) = run(cell, own, "reno")
    assert arm.drops > 0
    assert sum(each.retransmits for each in arm.warm_up) > 0


def test_a_switch_marks_a_peer_but_not_a_server_that_refuses_ecn(own):
    cell = AloneCell(
        "marks", 10**8, 0.01, 0.05, 2_000_000, offloads=False, queue_bdp=8.0, mark_bdp=0.5, **SHORT
    )
    own.load(["bpf_dctcp"])
    assert run(cell, own, "reno")[0].warm_up[0].marks > 0
    server = AloneCell(**{**vars(cell), "receiver_ecn": 0})
    assert run(server, own, "reno")[0].warm_up[0].marks == 0


def test_four_flows_are_one_job(own):
    own.load(["mltcp_cubic"])
    cell = AloneCell("flows", 10**8, 0.005, 0.1, 800_000, flows=4)
    for _ in range(5):
        (arm,) = run(cell, own, "mltcp_cubic")
        # They take 0.07 s; one in which this machine held the sender up for a pause may be two to the kernel.
        if max(each.seconds for each in (*arm.warm_up, *arm.counted)) < 0.14:
            break
    assert arm.detection is not None
    # Where the kernel has not counted the last acknowledgements: of less than it takes for another iteration.
    missing = 800_000 // 64 if kernel_skips_calls() else 0
    assert arm.detection.total_bytes == pytest.approx(800_000, abs=missing)


def test_an_interrupt_leaves_nothing(tmp_path):
    running = RunningCommand(["alone", *TAILS, "--iterations", "500", "-o", str(tmp_path)], ranks=2)
    assert controls_of(running.process.pid)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (130, "mltcp-bench: interrupted; the lab has been removed")
    assert not left_in_labs(running.namespaces)
    assert not controls_of(running.process.pid)
