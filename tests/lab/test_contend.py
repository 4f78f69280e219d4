"""`mltcp-bench contend` end to end: real processes, the real kernel, and what is left when it is cut short."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.lab.network import namespaces
from mltcp.ebpf.congestion_controls import Controls

pytestmark = pytest.mark.lab
CONTEND = [sys.executable, "-m", "bench.cli", "contend"]
SHORT = ["--rate", "300mbit", "--repeat", "1", "--compute", "0.05"]
LONG = [*SHORT, "--policies", "cubic", "--iterations", "2000"]


def labs_of(pid):
    """The namespaces of the labs that a process owns."""
    records = Path("/run/mltcp-lab").glob("*.json")
    ids = [record.stem for record in records if json.loads(record.read_text())["pid"] == pid]
    return [name for one in ids for name in namespaces.names(f"mltcp-lab-{one}")]


def processes_in(name):
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]


def started(arguments):
    """A contest that is under way: all of its four ranks are in the lab."""
    running = subprocess.Popen(
        [*CONTEND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while sum(bool(processes_in(name)) for name in labs_of(running.pid)) < 4:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return running


def test_one_document_with_every_policy():
    policies = "isolated,cubic,mltcp_reno@quadratic,dctcp,mltcp_dcqcn,dcqcn@by=socket"
    before = Controls().loaded()
    done = subprocess.run(
        [*CONTEND, *SHORT, "--jobs", "vgg16,train", "--policies", policies, "--iterations", "6", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert [policy["policy"] for policy in document["policies"]] == policies.split(",")
    for policy in document["policies"]:
        assert {job["job"] for job in policy["jobs"]} == {"vgg16", "train"}
        assert all(len(job["iteration_s"]) >= 6 for job in policy["jobs"])
        assert policy["mean_slowdown"] > 0.5
    assert Controls().loaded() == before


def test_a_rank_that_dies_ends_the_run_with_its_name_and_no_lab():
    running = started(LONG)
    names = labs_of(running.pid)
    victim = next(name for name in names if name.endswith("j1r1"))
    os.kill(processes_in(victim)[0], signal.SIGKILL)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 1
    assert error.strip() == "mltcp-bench: job vgg16-2, rank 1: killed by SIGKILL"
    assert not set(names) & set(namespaces.names("mltcp-lab-"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(number, status):
    running = started(LONG)
    names = labs_of(running.pid)
    members = [pid for name in names for pid in processes_in(name)]
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == status
    assert not set(names) & set(namespaces.names("mltcp-lab-"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in members)
