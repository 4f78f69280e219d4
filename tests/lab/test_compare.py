"""`mltcp-bench compare` end to end: real processes, a change, a trace, and what is left when it is cut short.

No MLTCP control is loaded here: `test_compare_mltcp.py` does that.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.lab.lab_commands import RunningCommand, is_process, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("compare")]
COMPARE = [sys.executable, "-m", "bench.cli", "compare"]
JOBS = [
    {
        "name": name,
        "workers": 2,
        "iterations": 100,
        "arrival_s": arrival_s,
        "phases": [
            {"duration_s": 0.07, "bandwidth_bps": 0},
            {"duration_s": 0.03, "bandwidth_bps": bandwidth},
        ],
    }
    for name, arrival_s, bandwidth in (("full", 0, 50e9), ("half", 1, 25e9))
]


@pytest.fixture
def pair(tmp_path):
    """A set, and a trace: a job at line rate and one that sends in pieces."""
    path = tmp_path / "pair.json"
    path.write_text(json.dumps({"name": "pair", "source": "", "capacity_gbps": 50, "jobs": JOBS}))
    return str(path)


def compared(*arguments):
    done = subprocess.run(
        [*COMPARE, *arguments, "--repeat", "1", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)["sets"]
    return document


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_change_in_mid_run_is_settled(pair):
    document = compared(
        "--set", pair, "--policies", "isolated,fair", "--iterations", "10", "--change", "full:5:2"
    )
    fair = next(each for each in document["approaches"] if each["approach"] == "fair")
    assert document["change"] == {"job": "full", "iteration": 5, "factor": 2.0}
    assert set(fair["settling"]) == {"iterations", "seconds"}
    full = next(job for job in document["runs"][0]["jobs"] if job["job"] == "full")
    # Of 0.14 + 0.06 s, the former is doubled.
    assert min(full["iteration_s"][5:]) > 0.3 > 0.14 + 0.06


def test_a_trace_is_placed_and_runs_to_its_end(pair):
    shape = ["--racks", "2", "--servers", "2", "--slots", "1"]
    policies = "isolated,fair,themis+cassini,lwf-1+srsf-1"
    document = compared("--trace", pair, *shape, "--policies", policies, "--iterations", "6")
    runs = {run["approach"]: run for run in document["runs"]}
    for run in runs.values():
        for job in run["jobs"]:
            assert len(job["iteration_s"]) == 6
            assert job["ended_s"] > job["arrival_s"]
            assert len(set(job["servers"])) == 2
    assert all(runs[name]["decisions_s"] for name in policies.split(","))
    # First-fit fills racks, and both jobs find one of their own.
    assert [job["servers"] for job in runs["fair"]["jobs"]] == [["r0s0", "r0s1"], ["r1s0", "r1s1"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "best"], "got 'best'"),
        (["--policies", "themis"], "themis only places jobs"),
        (["--set", "snapshot9"], "got 'snapshot9'"),
        (["--change", "nobody:3:2"], "no job 'nobody'"),
        (["--iterations", "0"], "--iterations: expected 1 or more, got 0"),
        (["--from", "/nowhere"], "/nowhere"),
        (["--trace", "poisson", "--policies", "isolated,mltcp_dcqcn"], "expected mltcp_dcqcn@by=socket"),
    ],
)
def test_bad_usage_is_one_line(arguments, message):
    done = subprocess.run([*COMPARE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("policy", ["cassini", "srsf-1"])
def test_an_interrupted_run_leaves_nothing(pair, policy):
    arguments = ["--set", pair, "--policies", policy, "--iterations", "2000", "--repeat", "1"]
    running = RunningCommand(["compare", *arguments], ranks=4)
    members = [*running.ranks, *children_of(running.process.pid)]
    assert running.end(signal.SIGINT)[0] == 130
    assert not left_in_labs(running.namespaces)
    # The fork server and its like go when they notice that their parent has.
    eventually(lambda: not any(map(is_process, members)))
