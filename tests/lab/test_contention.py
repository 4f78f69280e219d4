"""`mltcp-bench contention` end to end: real all-reduces on a real link, and what is left when it is cut short."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

from bench.lab.network import namespaces
from placement.experiments.fit import fit, read_measurements

pytestmark = pytest.mark.lab
CONTENTION = [sys.executable, "-m", "bench.cli", "contention"]
SHORT = ["--jobs", "1,2", "--sizes", "256K,1M", "--rate", "100mbit"]
RANKS = 4


def labs_of(pid):
    """The namespaces of the labs that a process owns."""
    records = Path("/run/mltcp-lab").glob("*.json")
    ids = [record.stem for record in records if json.loads(record.read_text())["pid"] == pid]
    return [name for one in ids for name in namespaces.names(f"mltcp-lab-{one}")]


def processes_in(name):
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]


def started(output):
    """A measurement under way that would last long: all of its ranks are in the lab."""
    running = subprocess.Popen(
        [*CONTENTION, *SHORT, "--repeat", "1000", "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while sum(bool(processes_in(name)) for name in labs_of(running.pid)) < RANKS:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return running


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

    def mean_us(jobs):
        return fmean(m.latency_us for m in measurements if (m.jobs, m.size_bytes) == (jobs, 1 << 20))

    # A lone transfer may leave a tenth of the link idle, and the mean of two counts one that ends early.
    assert 1.2 < mean_us(2) / mean_us(1) < 3
    # What the link carries of a megabyte takes 84 ms at 100 Mbit/s; nothing can be faster.
    assert 84_000 < mean_us(1) < 250_000
    assert fit(measurements).ns_per_byte.value == pytest.approx(84, rel=0.5)
    assert list(tmp_path.iterdir()) == [output]


def test_a_rank_that_dies_ends_the_measurement_with_its_name_and_no_lab(tmp_path):
    running = started(tmp_path / "contention.csv")
    names = labs_of(running.pid)
    victim = next(name for name in names if name.endswith("j1r1"))
    os.kill(processes_in(victim)[0], signal.SIGKILL)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 1
    assert error.strip() == "mltcp-bench: job job-2, rank 1: killed by SIGKILL"
    assert not set(names) & set(namespaces.names("mltcp-lab-"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_measurement_leaves_nothing(number, status, tmp_path):
    output = tmp_path / "contention.csv"
    output.write_text("as it was")
    running = started(output)
    names = labs_of(running.pid)
    members = [pid for name in names for pid in processes_in(name)]
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == status
    assert not set(names) & set(namespaces.names("mltcp-lab-"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in members)
    assert output.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [output]
