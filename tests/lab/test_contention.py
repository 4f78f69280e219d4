"""`mltcp-bench contention` end to end: real all-reduces on a real link, and what is left when it is cut short."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from statistics import median

import pytest

from placement.experiments.fit import Measurement, fit, read_measurements
from tests.lab.lab_commands import RunningCommand, is_process, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("contention")]
CONTENTION = [sys.executable, "-m", "bench.cli", "contention"]
SHORT = ["--jobs", "1,2", "--sizes", "256K,1M", "--rate", "100mbit"]
RANKS = 4


def measurement(output):
    """A measurement under way that would last long."""
    return RunningCommand(["contention", *SHORT, "--repeat", "1000", "-o", str(output)], RANKS)


def test_two_at_a_time_take_nearly_twice_as_long(tmp_path):
    output = tmp_path / "contention.csv"
    done = subprocess.run(
        [*CONTENTION, *SHORT, "--repeat", "3", "--json", "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert len(document["measurements"]) == 2 * 2 * 3
    assert all(len(each["times_us"]) == each["jobs"] for each in document["measurements"])
    measurements = read_measurements(output)
    assert [m.jobs for m in measurements] == [each["jobs"] for each in document["measurements"]]

    # Of three rounds the one in the middle: this machine may hold a process up in one of them.
    typical = {
        (jobs, size): median(m.latency_us for m in measurements if (m.jobs, m.size_bytes) == (jobs, size))
        for jobs, size in product((1, 2), (1 << 18, 1 << 20))
    }
    one_us, two_us = typical[1, 1 << 20], typical[2, 1 << 20]
    # A lone transfer may leave a tenth of the link idle, and the mean of two counts one that ends early.
    assert 1.2 < two_us / one_us < 3
    # What the link carries of a megabyte takes 84 ms at 100 Mbit/s; nothing can be faster.
    assert 84_000 < one_us < 250_000
    fitted = fit([Measurement(*point, latency_us) for point, latency_us in typical.items()])
    assert fitted.ns_per_byte.value == pytest.approx(84, rel=0.5)
    assert list(tmp_path.iterdir()) == [output]


def test_a_rank_that_dies_ends_the_measurement_with_its_name_and_no_lab(tmp_path):
    running = measurement(tmp_path / "contention.csv")
    os.kill(running.rank_in("j1r1"), signal.SIGKILL)
    assert running.end() == (1, "mltcp-bench: job job-2, rank 1: killed by SIGKILL")
    assert not left_in_labs(running.namespaces)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_measurement_leaves_nothing(number, status, tmp_path):
    output = tmp_path / "contention.csv"
    output.write_text("as it was")
    running = measurement(output)
    assert running.end(number)[0] == status
    assert not left_in_labs(running.namespaces)
    assert not any(map(is_process, running.ranks))
    assert output.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [output]
