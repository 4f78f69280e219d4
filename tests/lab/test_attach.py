"""`mltcp attach` and `mltcp detach`: an existing cgroup is registered at the daemon, and is left as it is."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest

from mltcp.core.cgroups import cgroup_of, cgroup_root
from mltcp.core.errors import UsageError
from mltcp.daemon.client.client import CgroupRegistration, Client
from mltcp.daemon.jobs import attachments
from tests.lab.daemons import RENO, daemon_in
from tests.lab.test_daemon import MARK, PACED, until
from tests.lab.test_run_with_daemon import CONTROL_AND_CGROUP, PROGRAM, PROGRAM_THAT_IS_ASKED, asked, said_by
from tests.unit.mltcp.daemon.serving import NOBODY, serving

pytestmark = pytest.mark.lab

# Like the other, but its connections stay open.
PROGRAM_THAT_KEEPS = (
    CONTROL_AND_CGROUP.replace(
        "with socket.create_connection(listener.getsockname()) as ours, listener.accept()[0]:",
        "ours = socket.create_connection(listener.getsockname()); kept.append((ours, listener.accept()[0])); "
        "ours.sendall(b'x' * 5000)\n        if True:",
    )
    + "kept = []\nfor line in sys.stdin: print(told(), flush=True)"
)


@pytest.fixture
def cgroups():
    """Makes cgroups such as a batch system or a container runtime makes, removed at the end."""
    made = []

    def make(parent=None):
        path = (parent or cgroup_root()) / f"step-{uuid.uuid4().hex[:12]}"
        path.mkdir()
        made.append(path)
        return path

    yield make
    for path in reversed(made):
        if path.exists():
            (path / "cgroup.kill").write_text("1")
            until(lambda path=path: _removed(path))


def _removed(path):
    try:
        path.rmdir()
    except OSError:
        return not path.exists()
    return True


@pytest.fixture
def started():
    """Starts programs in a cgroup, which are killed at the end."""
    running = []

    def start(cgroup, program=PROGRAM_THAT_IS_ASKED):
        process = subprocess.Popen(
            ["/usr/bin/python3", "-c", program],
            preexec_fn=lambda: (cgroup / "cgroup.procs").write_text("0"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def mltcp(daemon, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "mltcp.cli", *arguments],
        env={**os.environ, "MLTCP_DAEMON": str(daemon.socket)},
        capture_output=True,
        text=True,
    )


def jobs_of(daemon):
    with Client(daemon.socket) as client:
        return {job.job: job for job in client.status().jobs}


def shown(daemon, name, **values):
    """The status of a job, waited for: a status may be a moment old."""

    def found():
        job = jobs_of(daemon).get(name)
        return job if job and all(getattr(job, field) == value for field, value in values.items()) else None

    return until(found)


def test_new_connections_in_a_cgroup_are_the_jobs_until_its_last_process_ends(namespace, cgroups, started):
    step = cgroups()
    task = cgroups(step)
    with daemon_in(namespace, RENO) as daemon:
        process = started(task, PROGRAM_THAT_KEEPS)
        options = (
            "--job",
            "slurm-7",
            "--label",
            "train.sh",
            "--user",
            "nobody",
            "--cc",
            "mltcp_reno",
            "--json",
        )
        done = mltcp(daemon, "attach", "--cgroup", str(step), *options)
        made = json.loads(done.stdout)
        assert (made["cgroup"], made["job"], made["control"]) == (f"/{step.name}", "slurm-7", "mltcp_reno")
        assert asked(process) == ["mltcp_reno", f"/{step.name}/{task.name}"]
        job = shown(daemon, "slurm-7", flows=2)
        assert (job.label, job.user, job.uid, job.ranks) == ("train.sh", "nobody", NOBODY, 1)
        assert "slurm-7 train.sh" in mltcp(daemon, "top", "--once").stdout
        process.communicate(timeout=20)
        until(lambda: jobs_of(daemon) == {})
        # It is not the daemon's, and stays with all that is below it.
        assert task.exists()


def test_one_without_a_process_yet_is_waited_for(namespace, cgroups, started):
    step = cgroups()
    with daemon_in(namespace, RENO) as daemon:
        with Client(daemon.socket) as client:
            client.attach(CgroupRegistration(f"/{step.name}", "later", control="mltcp_reno"))
        shown(daemon, "later", flows=0)
        process = started(step)
        assert asked(process)[0] == "mltcp_reno"
        process.communicate(timeout=20)
        until(lambda: jobs_of(daemon) == {})


def test_the_cgroups_of_a_job_are_one_job_and_two_jobs_are_two(namespace, cgroups, started):
    first, second, other = cgroups(), cgroups(), cgroups()
    with daemon_in(namespace) as daemon:
        processes = [started(each) for each in (first, second, other)]
        with Client(daemon.socket) as client:
            for each, name, control in (
                (first, "a", "mltcp_reno"),
                (second, "a", "mltcp_reno"),
                (other, "b", "mltcp_cubic"),
            ):
                client.attach(CgroupRegistration(f"/{each.name}", name, control=control))
        assert [asked(each)[0] for each in processes] == ["mltcp_reno", "mltcp_reno", "mltcp_cubic"]
        shown(daemon, "a", ranks=2)
        shown(daemon, "b", ranks=1)
        processes[0].communicate(timeout=20)
        shown(daemon, "a", ranks=1)
        shown(daemon, "b", ranks=1)
        assert asked(processes[1])[0] == "mltcp_reno"
        processes[1].communicate(timeout=20)
        until(lambda: list(jobs_of(daemon)) == ["b"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_daemon_has_the_cgroup_and_what_goes_on_in_it(namespace, cgroups, started, number):
    step, ended = cgroups(), cgroups()
    with daemon_in(namespace, RENO) as daemon:
        process, other = started(step, PROGRAM_THAT_KEEPS), started(ended)
        with Client(daemon.socket) as client:
            client.attach(CgroupRegistration(f"/{step.name}", "a", "label", NOBODY, "mltcp_reno"))
            client.attach(CgroupRegistration(f"/{ended.name}", "b", control="mltcp_reno"))
        assert asked(process)[0] == "mltcp_reno"
        shown(daemon, "a", flows=2)
        daemon.stop(number)
        assert asked(process)[0] != "mltcp_reno"
        other.communicate(timeout=20)
        daemon.start()
        assert asked(process)[0] == "mltcp_reno"
        # Those that were open stay flows of the job: the kernel has kept the maps of their control for them.
        shown(daemon, "a", flows=4)
        until(lambda: list(jobs_of(daemon)) == ["a"])
        shown(daemon, "a", label="label", user="nobody")
        process.communicate(timeout=20)
        until(lambda: jobs_of(daemon) == {})


def test_detach_ends_it_and_the_processes_go_on(namespace, cgroups, started):
    step = cgroups()
    with daemon_in(namespace, RENO) as daemon:
        process = started(step)
        mltcp(daemon, "attach", "--pid", str(process.pid), "--job", "a", "--cc", "mltcp_reno")
        assert asked(process)[0] == "mltcp_reno"
        assert mltcp(daemon, "detach", "--cgroup", str(step)).returncode == 0
        until(lambda: jobs_of(daemon) == {})
        assert asked(process) != ["mltcp_reno", f"/{step.name}"]
        assert cgroup_of(process.pid) == step
        again = mltcp(daemon, "detach", "--cgroup", str(step))
        assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)


def test_under_pacing_its_connections_carry_the_mark_of_the_jobs_class(namespace, cgroups, started):
    step = cgroups()
    with daemon_in(namespace, PACED) as daemon, Client(daemon.socket) as client:
        made = client.attach(CgroupRegistration(f"/{step.name}", "a"))
        assert (made.how, made.mark) == ("tc", MARK | made.number)
        assert int(said_by(started(step, PROGRAM))[1]) == made.mark


def test_a_cgroup_is_of_one_job_and_asking_again_is_the_same(namespace, cgroups, started):
    step = cgroups()
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as client:
        started(step)
        first = client.attach(CgroupRegistration(f"/{step.name}", "a"))
        assert client.attach(CgroupRegistration(f"/{step.name}", "a")) == first
        with pytest.raises(
            UsageError, match=r"expected one without a job, got /step-.*, which is of job \d+ \(a of"
        ):
            client.attach(CgroupRegistration(f"/{step.name}", "b"))
        until(lambda: list(jobs_of(daemon)) == ["a"])


@pytest.mark.parametrize("step", ["attached_program", "move"])
def test_a_process_is_attached_although_another_program_removes_its_empty_cgroup(monkeypatch, tmp_path, step):
    """As each does at its start with the empty cgroups of jobs: they may be left ones."""
    taken, act = [], getattr(attachments, step)

    def act_on_what_is_gone(first, cgroup, *rest):
        if not taken:
            cgroup.rmdir()
            taken.append(cgroup)
        return act(first, cgroup, *rest)

    monkeypatch.setattr(attachments, step, act_on_what_is_gone)
    program = (
        "from mltcp.daemon.client.client import *\n"
        "with Client() as client:\n"
        "    client.register(Registration('taken', attach=True))\n"
        "    print(open('/proc/self/cgroup').read())\n"
    )
    with serving(tmp_path) as running:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "MLTCP_DAEMON": str(running.path)},
            capture_output=True,
            text=True,
        )
    (cgroup,) = taken
    assert f"/{cgroup.name}\n" in done.stdout, done.stderr
