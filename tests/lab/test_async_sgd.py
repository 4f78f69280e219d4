"""`mltcp-bench async` end to end: real workers and a real server on a real link, kept runs, and what is left behind."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.lab.lab_commands import RunningCommand, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("async_sgd")]
ASYNC = [sys.executable, "-m", "bench.cli", "async"]
SHORT = ["--workers", "1,2", "--controls", "mltcp_reno", "--rate", "40mbit", "--size", "100kb"]
UPDATES, CYCLES = 34, 28
"""So many that two workers are faster than one although one of them is held up; cycles after the warm-up."""
TIMES = ["--worker-s", "0.05", "--server-s", "0.01", "--repeat", "1"]
HELD_UP_S = 1.0
"""A process may get no processor for so long; of two measures perhaps one counts the cycle in which that is."""


def test_two_workers_take_turns_and_kept_runs_are_not_repeated(tmp_path):
    folder, packets = tmp_path / "report", tmp_path / "k1.pcap"
    command = [*ASYNC, *SHORT, *TIMES, "--updates", str(UPDATES), "--json", "-o", str(folder)]
    done = subprocess.run([*command, "--capture", str(packets)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (control,) = document["controls"]
    one, two = control["cells"]
    # What a gradient takes on the link cannot be less than its bytes; delays have no upper bound.
    profile = control["profile"]
    assert profile["uplink_s"] > 0.02
    assert profile["worker_s"] >= 0.0475
    assert profile["server_s"] >= 0.0095
    assert one["throughput"] <= 1 / (0.0475 + 0.02 + 0.0095 + 0.02)
    assert 1 / one["throughput"] >= control["cycle_s"] / 1.02 - HELD_UP_S / CYCLES
    assert two["throughput"] > one["throughput"]
    # Where one is held up at the end, the last updates are those of the other one alone.
    alone = HELD_UP_S * one["throughput"] / CYCLES
    assert 0.9 - alone < two["repeats"][0]["staleness"] < 1.2
    assert two["repeats"][0]["up"]["busy"] > 0
    # Every worker is a job of its own at both ends of its connection, and its iteration is one transfer; two where a
    # delay of the machine misled it about the pause between them. The figure is a median of two workers.
    for side in ("worker", "server"):
        found = two["repeats"][0]["kernel"][side]
        assert found["jobs"] == 2
        assert found["recognised"] in (1, 2)
        transfers = found["total_bytes"] / 100_000
        assert transfers in (
            pytest.approx(1, rel=0.02),
            pytest.approx(1.5, rel=0.02),
            pytest.approx(2, rel=0.02),
        )
    # The capture is of the same run; its first cycles are left out, and acknowledgements move a little to and fro.
    assert document["capture"]["server"] == "10.77.255.1"
    late_s = HELD_UP_S / document["capture"]["cycles"]
    assert abs(document["capture"]["cycle_s"] - control["cycle_s"]) < 0.2 * control["cycle_s"] + late_s
    assert document["capture"]["gradient_bytes"] == pytest.approx(100_000, rel=0.01)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["controls"] == [control]


def test_weights_for_one_worker_leave_after_those_for_another(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"worker_s": 0.02, "uplink_s": 0.1, "server_s": 0.005, "downlink_s": 0.1}')
    command = [*ASYNC, "--workers", "5", "--worker-s", "0.02", "--server-s", "0.005"]
    command += ["--profile", str(profile)]
    command += ["--rate", "40mbit", "--size", "500kb", "--acks-first", "--repeat", "1", "--updates", "34"]
    done = subprocess.run(
        [*command, "--controls", "cubic", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (control,) = json.loads(done.stdout)["controls"]
    # To all at once it is 0.75; in turn, it is the time in which one transfer ends and the next one begins.
    assert control["cells"][0]["repeats"][0]["down"]["overlap"] < 0.5


def test_an_interrupt_leaves_nothing(tmp_path):
    arguments = ["async", *SHORT[2:], "--workers", "2", *TIMES, "--updates", "100000"]
    profile = tmp_path / "profile.json"
    profile.write_text('{"worker_s": 1, "uplink_s": 1, "server_s": 1, "downlink_s": 1}')
    running = RunningCommand([*arguments, "--profile", str(profile)], 3)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (130, "mltcp-bench: interrupted; the lab has been removed")
    assert not left_in_labs(running.namespaces)
