"""`mltcp-bench contend` end to end: real processes, the real kernel, and what is left when it is cut short."""

import json
import os
import signal
import subprocess
import sys

import pytest

from mltcp.ebpf.congestion_controls import Controls
from tests.lab.lab_commands import RunningCommand, is_process, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("contend")]
CONTEND = [sys.executable, "-m", "bench.cli", "contend"]
SHORT = ["--rate", "300mbit", "--repeat", "1", "--compute", "0.05"]
LONG = ["contend", *SHORT, "--policies", "cubic", "--iterations", "2000"]
RANKS = 4


def test_one_document_with_every_policy():
    policies = "isolated,mltcp_reno@quadratic,mltcp_dcqcn,dcqcn@by=socket,vgg16=mltcp_cubic+train=dcqcn"
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
    running = RunningCommand(LONG, RANKS)
    os.kill(running.rank_in("j1r1"), signal.SIGKILL)
    assert running.end() == (1, "mltcp-bench: job vgg16-2, rank 1: killed by SIGKILL")
    assert not left_in_labs(running.namespaces)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(number, status):
    running = RunningCommand(LONG, RANKS)
    assert running.end(number)[0] == status
    assert not left_in_labs(running.namespaces)
    assert not any(map(is_process, running.ranks))
