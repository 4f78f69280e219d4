"""Steps of a real Slurm under MLTCP by the SPANK plugin: in Slurm's own cgroups, with its limits and its accounting.

They need cgroup v2 with its controllers and Slurm with its headers: script/kernels --slurm has them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.lab.network.single_link import namespace_with_link
from bench.slurm.cluster import NODES, SlurmCluster, missing
from mltcp.core.errors import NotAvailableError
from mltcp.daemon.client.client import Client
from mltcp.ebpf.mounts import cgroup_root
from placement import slurm
from tests.lab.daemons import daemon_in
from tests.unit.mltcp.daemon.serving import NOBODY

pytestmark = pytest.mark.lab

LONGEST_S = 120.0
PLUGIN = Path(slurm.__file__).with_name("site") / "spank_mltcp.c"
CGROUPS = """\
CgroupPlugin=cgroup/v2
CgroupMountpoint={root}
IgnoreSystemd=yes
ConstrainCores=yes
ConstrainRAMSpace=yes
"""
SETTINGS = (
    "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n"
    "JobAcctGatherFrequency=1\nSelectTypeParameters=CR_CPU_Memory\nPlugStackConfig={plugstack}\nSlurmdDebug=verbose\n"
)

# Two ranks with one connection between them. Each writes down what it runs in and under, for each of the numbered
# requests of the test, and for each opens another connection.
RANKS = """
import json, os, pathlib, socket, sys, time
at, rank = pathlib.Path(sys.argv[1]), int(os.environ["SLURM_PROCID"])
def control(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()
def wait_for(path):
    while not path.exists():
        time.sleep(0.05)
cgroup = next(line[3:] for line in open("/proc/self/cgroup").read().splitlines() if line.startswith("0::"))
held = []
for number in range(1000):
    wait_for(at / f"ask.{number}")
    port = at / f"port.{number}"
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        (at / "new").write_text(str(listener.getsockname()[1]))
        (at / "new").rename(port)
        held.append(listener.accept()[0])
    else:
        wait_for(port)
        held.append(socket.create_connection(("127.0.0.1", int(port.read_text()))))
    held[-1].sendall(b"x" * 5000)
    told = {"control": control(held[-1]), "cgroup": cgroup, "pid": os.getpid(), "cpus": len(os.sched_getaffinity(0))}
    (at / f"told.{rank}").write_text(json.dumps(told))
    (at / f"told.{rank}").rename(at / f"answer.{number}.{rank}")
    if (at / "end").exists():
        break
"""


def until(condition):
    deadline_s = time.monotonic() + LONGEST_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    compiled = tmp_path_factory.mktemp("plugin") / "mltcp.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(compiled), str(PLUGIN)]
    if not Path("/usr/include/slurm/spank.h").exists() or not shutil.which("cc"):
        pytest.skip("needs a C compiler and the headers of Slurm: apt-get install gcc libslurm-dev")
    subprocess.run(command, check=True)
    return compiled


@pytest.fixture(scope="module")
def daemon():
    with (
        namespace_with_link() as namespace,
        daemon_in(namespace, 'default_control = "mltcp_reno"') as running,
    ):
        yield running


@pytest.fixture(scope="module")
def cluster(plugin, daemon):
    if lacking := missing(NODES):
        pytest.skip(f"needs {', '.join(lacking)}")
    try:
        root = cgroup_root()
    except NotAvailableError as error:
        pytest.skip(str(error))
    if "memory" not in (root / "cgroup.controllers").read_text().split():
        pytest.skip("the controllers of cgroup v2 are not there: they are in hierarchies of v1")
    plugstack = plugin.with_name("plugstack.conf")
    plugstack.write_text(f"optional {plugin} socket={daemon.socket}\n")
    files = {"cgroup.conf": CGROUPS.format(root=root)}
    settings = SETTINGS.format(plugstack=plugstack)
    with SlurmCluster({"n1": 0}, cpus=2, memory_mb=1000, settings=settings, files=files) as running:
        yield running


@pytest.fixture
def daemon_up(daemon):
    if not daemon.is_running():
        daemon.start()
    return daemon


class Job:
    """A job of a user, whose ranks are asked for connections by files."""

    def __init__(self, cluster, place, *options, steps=1, tasks=2):
        self.cluster, self.places = cluster, [place / f"step{number}" for number in range(steps)]
        self.asked = 0
        for each in (place, *self.places):
            each.mkdir(exist_ok=True)
            each.chmod(0o777)
        ranks = place / "ranks.py"
        ranks.write_text(RANKS)
        lines = [
            f"srun --exact -n{tasks} -c1 --mem=200 /usr/bin/python3 {ranks} {each} &" for each in self.places
        ]
        script = place / "train.sh"
        script.write_text("\n".join(["#!/bin/sh", *lines, "wait", ""]))
        given = [*("--parsable", f"--uid={NOBODY}", f"--gid={NOBODY}", f"--chdir={place}"), *options]
        self.id = cluster.command("sbatch", *given, f"--output={place}/out", str(script)).strip()
        self.name = f"slurm-{self.id}"

    def answers(self, end=False, step=0):
        """What both ranks of a step say about their next connection."""
        place = self.places[step]
        number = len(list(place.glob("ask.*")))
        if end:
            (place / "end").touch()
        (place / f"ask.{number}").touch()
        paths = [place / f"answer.{number}.{rank}" for rank in range(2)]
        until(lambda: all(each.exists() for each in paths) or self.state() not in ("PENDING", "RUNNING"))
        return [json.loads(each.read_text()) for each in paths]

    def state(self):
        return self.shown("JobState")

    def shown(self, field):
        words = self.cluster.command("scontrol", "--oneliner", "show", "job", self.id).split()
        return next(word.split("=", 1)[1] for word in words if word.startswith(f"{field}="))


def jobs_of(daemon):
    with Client(daemon.socket) as client:
        return {job.job: job for job in client.status().jobs}


def test_the_connections_of_a_step_are_flows_of_its_job_in_slurms_own_cgroup(cluster, daemon_up, tmp_path):
    job = Job(cluster, tmp_path, "-n2", "--mem=400", "--job-name=train")
    answers = job.answers()
    assert {each["control"] for each in answers} == {"mltcp_reno"}
    for rank, each in enumerate(answers):
        assert f"/job_{job.id}/step_0/user/task_{rank}" in each["cgroup"]
        assert each["cgroup"].endswith(f"task_{rank}")
        assert each["cpus"] == 1
    step = cgroup_root() / answers[0]["cgroup"].lstrip("/").split("/user/")[0]
    assert (step / "memory.max").read_text() == f"{200 << 20}\n"
    seen = until(lambda: (found := jobs_of(daemon_up).get(job.name)) and found.flows == 2 and found)
    assert (seen.label, seen.user, seen.control) == ("train", "nobody", "mltcp_reno")
    printed = subprocess.run(
        [sys.executable, "-m", "mltcp.cli", "status"],
        env={**os.environ, "MLTCP_DAEMON": str(daemon_up.socket), "COLUMNS": "120"},
        capture_output=True,
        text=True,
    ).stdout
    assert f"{job.name} train" in printed
    used = cluster.command(
        "sstat", "--noheader", "--parsable2", "--format=JobID,NTasks,MaxRSS", f"{job.id}.0"
    ).strip()
    assert used.startswith(f"{job.id}.0|2|")
    assert not used.endswith("|0")
    job.answers(end=True)
    until(lambda: job.state() == "COMPLETED")
    until(lambda: job.name not in jobs_of(daemon_up))
    assert not step.exists()
    assert "mltcp" not in Path(tmp_path / "out").read_text()
