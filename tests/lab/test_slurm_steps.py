"""Steps of a real Slurm under MLTCP by the SPANK plugin: in Slurm's own cgroups, with its limits and its accounting.

They need cgroup v2 with its controllers and Slurm with its headers: script/kernels --slurm has them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from bench.lab.network.namespaces import namespace_with_link
from bench.lab.slurm_cluster import NODES, SlurmCluster, missing
from mltcp.core.cgroups import cgroup_root
from mltcp.core.errors import NotAvailableError
from mltcp.daemon.client.client import Client
from placement.engines import slurm
from tests.eventually import eventually as until
from tests.lab.daemons import daemon_in
from tests.unit.mltcp.daemon.serving import NOBODY

pytestmark = pytest.mark.lab

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
    "SlurmdLogFile={log}\n"
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


@pytest.fixture(scope="module")
def public():
    """A directory that the users of the jobs may enter."""
    with tempfile.TemporaryDirectory(prefix="mltcp-steps-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def plugin(public):
    compiled = public / "mltcp.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(compiled), str(PLUGIN)]
    if not Path("/usr/include/slurm/spank.h").exists() or not shutil.which("cc"):
        pytest.skip("needs a C compiler and the headers of Slurm: apt-get install gcc libslurm-dev")
    subprocess.run(command, check=True)
    return compiled


@pytest.fixture(scope="module")
def log(public):
    """The log of slurmd. Without a file of that name slurmstepd, which is not its child, writes none."""
    return public / "slurmd.log"


@pytest.fixture(scope="module")
def daemon():
    with (
        namespace_with_link() as namespace,
        daemon_in(namespace, 'default_control = "mltcp_reno"') as running,
    ):
        yield running


@pytest.fixture(scope="module")
def cluster(plugin, log, daemon):
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
    settings = SETTINGS.format(plugstack=plugstack, log=log)
    with SlurmCluster({"n1": 0}, cpus=2, memory_mb=1000, settings=settings, files=files) as running:
        running.directory.chmod(0o755)  # users' commands read slurm.conf
        yield running


@pytest.fixture
def daemon_up(daemon):
    if not daemon.is_running():
        daemon.start()
    return daemon


class Job:
    """A job of a user, whose ranks, two in each of its steps, are asked for connections by files."""

    def __init__(self, cluster, place, *options, steps=1):
        self.cluster, self.places = cluster, [place / f"step{number}" for number in range(steps)]
        for each in (place, *self.places):
            each.mkdir(exist_ok=True)
            each.chmod(0o777)
        ranks = place / "ranks.py"
        ranks.write_text(RANKS)
        srun = "srun --overlap --overcommit -n2 --mem=200 /usr/bin/python3"
        lines = [f"{srun} {ranks} {each} &" for each in self.places]
        script = place / "train.sh"
        script.write_text("\n".join(["#!/bin/sh", *lines, "wait", ""]))
        given = [
            *("--parsable", f"--uid={NOBODY}", f"--gid={NOBODY}", f"--chdir={place}"),
            "-n1",
            "--mem=400",
        ]
        self.id = cluster.command("sbatch", *given, *options, f"--output={place}/out", str(script)).strip()
        self.name = f"slurm-{self.id}"

    def answers(self, step=0, end=False):
        """The answers of both ranks of a step about another connection between them."""
        place = self.places[step]
        number = len(list(place.glob("ask.*")))
        if end:
            (place / "end").touch()
        (place / f"ask.{number}").touch()
        paths = [place / f"answer.{number}.{rank}" for rank in range(2)]
        until(lambda: all(each.exists() for each in paths) or self.state() not in ("PENDING", "RUNNING"))
        if not all(each.exists() for each in paths):
            pytest.fail(f"{self.state()}: {(place.parent / 'out').read_text()}")
        return [json.loads(each.read_text()) for each in paths]

    def controls(self, step=0):
        return {each["control"] for each in self.answers(step)}

    def end(self):
        """Let its steps end; they are told so with their next connection."""
        for step in range(len(self.places)):
            self.answers(step, end=True)
        until(lambda: self.state() == "COMPLETED")

    def state(self):
        return self.shown("JobState")

    def shown(self, field):
        words = self.cluster.command("scontrol", "--oneliner", "show", "job", self.id).split()
        return next(word.split("=", 1)[1] for word in words if word.startswith(f"{field}="))

    def used(self):
        """Slurm's accounting of the step: its tasks, and whether it has seen memory of theirs."""
        columns = "--format=JobID,NTasks,MaxRSS"
        command = ("sstat", "--noheader", "--parsable2", columns, f"{self.id}.0")
        name, tasks, memory = self.cluster.command(*command).strip().split("|")
        return name == f"{self.id}.0", tasks, memory not in ("", "0")


@pytest.fixture
def submit(cluster, public):
    """Submits jobs, which are cancelled at the end."""
    submitted = []

    def submitting(*options, steps=1):
        place = Path(tempfile.mkdtemp(dir=public))
        submitted.append(Job(cluster, place, *options, steps=steps))
        return submitted[-1]

    yield submitting
    for job in submitted:
        cluster.command("scancel", job.id)
    until(lambda: not cluster.command("squeue", "--noheader").strip())


def jobs_of(daemon):
    with Client(daemon.socket) as client:
        return {job.job: job for job in client.status().jobs}


def flows_of(connections, steps=1):
    """The flows of a job: both ends of its ranks' connections, and in each step the end of that between slurmstepd and
    srun which is srun's, a process of the batch script."""
    return 2 * connections + steps


def seen(daemon, job, **values):
    """The status of a job, waited for."""

    def found():
        status = jobs_of(daemon).get(job.name)
        return (
            status if status and all(getattr(status, name) == each for name, each in values.items()) else None
        )

    return until(found)


def cgroup_of_tasks(job, answers):
    name = answers[0]["cgroup"]
    assert f"/job_{job.id}/step_0/user/task_" in name
    return cgroup_root() / name[1:].rsplit("/", 1)[0]


def step_daemon(job, step):
    """The process of slurmstepd for a step."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdigit() and f"[{job.id}.{step}]" in (entry / "cmdline").read_text():
                return int(entry.name)
    raise AssertionError(f"no slurmstepd of {job.id}.{step}")


def test_the_connections_of_a_step_are_flows_of_its_job_in_slurms_own_cgroup(submit, daemon_up):
    job = submit("--job-name=train")
    answers = job.answers()
    assert [(each["control"], each["cpus"]) for each in answers] == [("mltcp_reno", 1)] * 2
    tasks = cgroup_of_tasks(job, answers)
    assert (tasks / "memory.max").read_text() == f"{200 << 20}\n"
    status = seen(daemon_up, job, flows=flows_of(1))
    assert (status.label, status.user, status.control) == ("train", "nobody", "mltcp_reno")
    printed = subprocess.run(
        [sys.executable, "-m", "mltcp.cli", "status"],
        env={**os.environ, "MLTCP_DAEMON": str(daemon_up.socket), "COLUMNS": "120"},
        capture_output=True,
        text=True,
    ).stdout
    assert f"{job.name} train" in printed
    until(lambda: job.used() == (True, "2", True))
    job.end()
    until(lambda: job.name not in jobs_of(daemon_up))
    assert not tasks.exists()
    assert (job.places[0].parent / "out").read_text() == ""


def test_without_the_daemon_it_is_the_same_job_and_slurmds_log_says_what_is_missing(submit, log, daemon_up):
    known = submit()
    known.answers()
    known.end()
    daemon_up.stop()
    job = submit()
    answers = job.answers()
    assert not {each["control"] for each in answers} & {"mltcp_reno", "mltcp_cubic", "mltcp_dctcp"}
    assert (cgroup_of_tasks(job, answers) / "memory.max").read_text() == f"{200 << 20}\n"
    until(lambda: job.used() == (True, "2", True))
    job.end()
    for field in ("TRES", "ExitCode", "NumCPUs", "JobState", "Restarts"):
        assert job.shown(field) == known.shown(field)
    assert f"mltcp: {job.name} runs without MLTCP: no mltcpd answers at" in log.read_text()


def test_a_daemon_that_does_not_answer_does_not_keep_a_step_from_running(submit, log, daemon_up):
    os.kill(daemon_up.pid, signal.SIGSTOP)
    try:
        job = submit()
        job.answers()
        job.end()
    finally:
        os.kill(daemon_up.pid, signal.SIGCONT)
    assert f"mltcp: {job.name} runs without MLTCP: mltcpd does not reply" in log.read_text()


def test_a_cancelled_job_is_released(submit, cluster, daemon_up):
    job = submit()
    assert job.controls() == {"mltcp_reno"}
    cluster.command("scancel", job.id)
    until(lambda: job.name not in jobs_of(daemon_up))
    until(lambda: job.state() == "CANCELLED")  # COMPLETING until slurmd reports the end


def test_a_step_whose_slurmstepd_is_killed_is_released_with_its_last_process(submit, daemon_up):
    job = submit()
    answers = job.answers()
    seen(daemon_up, job, ranks=2)
    os.kill(step_daemon(job, 0), signal.SIGKILL)
    tasks = cgroup_of_tasks(job, answers)
    if tasks.exists():
        (tasks / "cgroup.kill").write_text("1")
    # The batch script is left, whose srun does not hear of the end of its step.
    seen(daemon_up, job, ranks=1)


def test_the_end_of_slurmd_changes_nothing(submit, cluster, daemon_up):
    job = submit()
    assert job.controls() == {"mltcp_reno"}
    cluster.kill("slurmd.n1")
    assert job.controls() == {"mltcp_reno"}
    seen(daemon_up, job, flows=flows_of(2))
    cluster.start("slurmd.n1")
    assert job.controls() == {"mltcp_reno"}
    job.end()
    until(lambda: job.name not in jobs_of(daemon_up))


def test_a_killed_daemon_has_the_step_and_its_flows_again(submit, daemon_up):
    job = submit("--job-name=train")
    assert job.controls() == {"mltcp_reno"}
    seen(daemon_up, job, flows=flows_of(1))
    daemon_up.stop(signal.SIGKILL)
    daemon_up.start()
    assert job.controls() == {"mltcp_reno"}
    seen(daemon_up, job, flows=flows_of(2), label="train", user="nobody")
    job.end()
    until(lambda: job.name not in jobs_of(daemon_up))


def test_two_steps_are_one_job_and_two_jobs_of_a_node_are_two(submit, daemon_up):
    both, other = submit(steps=2), submit()
    assert [both.controls(0), both.controls(1), other.controls()] == [{"mltcp_reno"}] * 3
    # The batch step is a member, too.
    assert seen(daemon_up, both, flows=flows_of(2, steps=2)).ranks == 3
    assert seen(daemon_up, other, flows=flows_of(1)).ranks == 2
    both.answers(0, end=True)
    seen(daemon_up, both, flows=flows_of(1), ranks=2)
    other.end()
    until(lambda: other.name not in jobs_of(daemon_up))
    assert both.controls(1) == {"mltcp_reno"}


def test_a_step_is_a_job_and_has_the_control_that_the_administrator_chooses(submit, plugin, daemon_up):
    plugstack = plugin.with_name("plugstack.conf")
    before = plugstack.read_text()
    plugstack.write_text(f"{before.strip()} by=step cc=mltcp_cubic\n")
    try:
        job = submit(steps=2)
        assert [job.controls(0), job.controls(1)] == [{"mltcp_cubic"}] * 2
    finally:
        plugstack.write_text(before)
    names = {f"{job.name}.{step}" for step in ("batch", "0", "1")}
    until(lambda: names <= jobs_of(daemon_up).keys())
