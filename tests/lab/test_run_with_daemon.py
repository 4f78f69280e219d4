"""`mltcp run` and the backend where a daemon answers: no privilege is needed, and the job is the daemon's."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress

import pytest

from bench.lab.network import namespaces
from mltcp.core.cgroups import cgroup_of, cgroup_root
from mltcp.daemon.client.client import Client
from mltcp.ebpf.cgroups import CGROUP
from tests.lab.daemons import RENO, daemon_in
from tests.lab.test_daemon import MARK, PACED, until
from tests.lab.test_run_cgroups import RUN, below, cgroup_of_program, started, step  # noqa: F401
from tests.unit.mltcp.daemon.serving import NOBODY

pytestmark = pytest.mark.lab

MLTCP_RUN = [sys.executable, "-m", "mltcp.cli", "run"]

# It opens a connection to itself, says what that runs under, and waits to be told to end.
PROGRAM = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
name = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()
print(name, ours.getsockopt(socket.SOL_SOCKET, socket.SO_MARK), flush=True)
ours.sendall(b"x" * 5000)
sys.stdin.read()
sys.exit(7)
"""


# It opens a connection to itself for each line that it reads, and says what that runs under and in which cgroup it is.
CONTROL_AND_CGROUP = """
import socket, subprocess, sys
def told():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as ours, listener.accept()[0]:
            name = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()
    lines = open("/proc/self/cgroup").read().splitlines()
    return name + " " + next(line[3:] for line in lines if line.startswith("0::"))
"""
PROGRAM_THAT_IS_ASKED = CONTROL_AND_CGROUP + "for line in sys.stdin: print(told(), flush=True)"


@pytest.fixture
def limited():
    """A cgroup such as a batch system makes for a step of a job."""
    path = cgroup_root() / f"step-{uuid.uuid4().hex[:12]}"
    path.mkdir()
    yield path
    (path / "cgroup.kill").write_text("1")
    until(lambda: _removed(path))


def _removed(path):
    for each in (*path.glob("mltcp:*"), path):
        with suppress(OSError):
            each.rmdir()
    return not path.exists()


def code_of_nobody(options, program):
    """`mltcp run` by another user; its modules are loaded before it becomes that user, who may not read them here."""
    return (
        "import os, sys\n"
        "import mltcp.cli.main, mltcp.cli.run, mltcp.daemon.client.membership, encodings.idna\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"sys.exit(mltcp.cli.main.main(['run', *{list(options)!r}, '--', '/usr/bin/python3', '-c', {program!r}]))"
    )


def run_as_nobody(daemon, *options, program=PROGRAM, cgroup=None):
    def enter():
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text("0")

    return subprocess.Popen(
        [sys.executable, "-c", code_of_nobody(options, program)],
        preexec_fn=enter,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLTCP_DAEMON": str(daemon.socket)},
    )


def asked(process):
    """The control of a new connection of the program, and its cgroup."""
    process.stdin.write("\n")
    process.stdin.flush()
    return said_by(process)


def said_by(process):
    """The words of the program's first line; a program that ended without one shows why."""
    line = process.stdout.readline()
    assert line, process.communicate(timeout=20)[1]
    return line.split()


def test_a_user_runs_a_program_under_ebpf_without_privilege(namespace):
    with daemon_in(namespace, RENO) as daemon:
        process = run_as_nobody(
            daemon, "--job", "bert", "--cc", "mltcp_reno", "--total-bytes", "10000", "--gap", "1"
        )
        assert said_by(process)[0] == "mltcp_reno"
        with Client(daemon.socket) as client:
            until(lambda: [job.bytes_ratio for job in client.status().jobs] == [0.5])
            (job,) = client.status().jobs
            assert (job.job, job.user, job.how, job.control) == ("bert", "nobody", "kernel", "mltcp_reno")
            # Both ends of its connection, which are in another network namespace than the daemon.
            until(lambda: [job.flows for job in client.status().jobs] == [2])
            _, told = process.communicate(timeout=20)
            assert process.returncode == 7, told
            until(lambda: client.status().jobs == ())


def test_the_program_is_told_which_backends_to_wrap(namespace):
    with daemon_in(namespace, RENO) as daemon:
        command = [*MLTCP_RUN, "--wrap", "nccl,Gloo", "--", "sh", "-c", "echo $MLTCP_WRAP"]
        environment = {**os.environ, "MLTCP_DAEMON": str(daemon.socket)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("gloo,nccl\n", 0)


def test_under_pacing_its_connections_get_the_mark_of_the_jobs_class_and_are_found(namespace):
    with daemon_in(namespace, PACED) as daemon:
        # The program is in the daemon's namespace, as on a host.
        process = namespaces.inside(namespace, lambda: run_as_nobody(daemon, "--job", "bert"))
        mark = int(said_by(process)[1])
        with Client(daemon.socket) as client:
            until(lambda: [MARK | job.number for job in client.status().jobs] == [mark])
            until(lambda: [job.flows for job in client.status().jobs] == [2])
            process.communicate(timeout=20)
        assert process.returncode == 7


def test_nothing_is_left_of_its_cgroup(namespace):
    def cgroups():
        return sorted(path.name for path in (cgroup_root() / CGROUP).glob("mltcp:bertha:*"))

    with daemon_in(namespace) as daemon:
        process = run_as_nobody(daemon, "--job", "bertha")
        said_by(process)
        assert len(cgroups()) == 1
        process.communicate(timeout=20)
        until(lambda: cgroups() == [])


@pytest.mark.parametrize("delegated", [False, True])
def test_a_program_stays_below_the_cgroup_that_its_user_was_put_in(namespace, limited, delegated):
    """Else it would leave the limits that are set there, and outlive the step that it belongs to."""
    if delegated:
        for each in (limited, limited / "cgroup.procs"):
            os.chown(each, NOBODY, NOBODY)
    with daemon_in(namespace, RENO) as daemon:
        options = ("--job", "bert", "--cc", "mltcp_reno")
        process = run_as_nobody(daemon, *options, program=PROGRAM_THAT_IS_ASKED, cgroup=limited)
        control, place = asked(process)
        assert (control, os.path.dirname(place)) == ("mltcp_reno", f"/{limited.name}")
        owner = (cgroup_root() / place[1:]).stat().st_uid
        assert owner == (NOBODY if delegated else 0)
        (limited / "cgroup.kill").write_text("1")
        process.communicate(timeout=20)
        assert process.returncode == -signal.SIGKILL
        with Client(daemon.socket) as client:
            until(lambda: client.status().jobs == ())


@pytest.mark.parametrize("delegated", [False, True])
def test_what_outlives_the_program_goes_on_in_the_cgroup_above(namespace, limited, delegated):
    if delegated:
        for each in (limited, limited / "cgroup.procs"):
            os.chown(each, NOBODY, NOBODY)
    quiet = "stdin=-3, stdout=-3, stderr=-3"
    program = f"import subprocess; print(subprocess.Popen(['sleep', '60'], {quiet}).pid, flush=True)"
    with daemon_in(namespace, RENO) as daemon:
        process = run_as_nobody(daemon, "--job", "bert", program=program, cgroup=limited)
        pid = int(said_by(process)[0])
        process.communicate(timeout=20)
        until(lambda: cgroup_of(pid) == limited)
        until(lambda: list(limited.glob("mltcp:*")) == [])


def test_a_run_within_a_run_of_another_user_has_its_own_job_and_the_outer_one_keeps_its_own(namespace):
    inner = code_of_nobody(("--job", "inner", "--cc", "mltcp_cubic"), PROGRAM_THAT_IS_ASKED)
    outer = CONTROL_AND_CGROUP + (
        "inner = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=-1, stdout=-1, text=True)\n"
        "inner.stdin.write('\\n')\n"
        "inner.stdin.flush()\n"
        "print(inner.stdout.readline(), end='', flush=True)\n"
        "print(told(), flush=True)\n"
        "sys.stdin.readline()\n"
        "inner.communicate()\n"
        "print(told(), flush=True)\n"
    )
    with (
        daemon_in(namespace, 'controls = ["mltcp_reno", "mltcp_cubic"]') as daemon,
        Client(daemon.socket) as client,
    ):
        process = subprocess.Popen(
            [*MLTCP_RUN, "--job", "outer", "--cc", "mltcp_reno", "--", sys.executable, "-c", outer, inner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MLTCP_DAEMON": str(daemon.socket)},
        )
        inner_control, inner_place = said_by(process)
        outer_control, outer_place = said_by(process)
        assert (inner_control, outer_control) == ("mltcp_cubic", "mltcp_reno")
        assert os.path.dirname(inner_place) == outer_place
        expected = {("outer", "root", "mltcp_reno"), ("inner", "nobody", "mltcp_cubic")}
        until(lambda: {(job.job, job.user, job.control) for job in client.status().jobs} == expected)
        told, wrong = process.communicate("\n", timeout=20)
        assert told.split() == ["mltcp_reno", outer_place], wrong
        until(lambda: client.status().jobs == ())
        assert not (cgroup_root() / outer_place[1:]).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_is_under_its_job_again_when_the_daemon_is_back(namespace, number):
    with daemon_in(namespace, RENO) as daemon:
        options = ("--job", "bert", "--cc", "mltcp_reno")
        process = run_as_nobody(daemon, *options, program=PROGRAM_THAT_IS_ASKED)
        before = asked(process)
        assert before[0] == "mltcp_reno"
        daemon.stop(number)
        assert asked(process)[0] != "mltcp_reno"
        daemon.start()
        until(lambda: asked(process) == before)
        with Client(daemon.socket) as client:
            until(lambda: [job.job for job in client.status().jobs] == ["bert"])
        process.communicate(timeout=20)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_the_program_which_stays_in_its_job(namespace, number):
    handles = f"import signal; signal.signal({int(number)}, lambda got, _: print('got', got, flush=True))\n"
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as client:
        options = ("--job", "bert", "--cc", "mltcp_reno")
        process = run_as_nobody(daemon, *options, program=handles + PROGRAM_THAT_IS_ASKED)
        before = asked(process)
        process.send_signal(number)
        assert said_by(process) == ["got", str(int(number))]
        assert asked(process) == before
        until(lambda: [job.job for job in client.status().jobs] == ["bert"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM


def test_a_user_who_may_not_connect_is_told_so(namespace):
    with daemon_in(namespace, PACED) as daemon:
        daemon.socket.chmod(0o600)
        process = run_as_nobody(daemon, "--job", "bert")
        _, told = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "only members of that socket's group may connect" in told


def test_what_the_daemon_refuses_is_one_line(namespace):
    with daemon_in(namespace, PACED) as daemon:
        process = run_as_nobody(daemon, "--job", "bert", "--cc", "mltcp_dctcp")
        _, told = process.communicate(timeout=20)
        assert process.returncode == 1
        assert told.startswith("mltcp: mltcpd: control: mltcp_dctcp is not loaded on this host,")
        assert len(told.splitlines()) == 1


def test_with_a_daemon_in_a_private_cgroup_namespace(step, namespace):  # noqa: F811
    with daemon_in(namespace, RENO) as daemon:
        environment = {**os.environ, "MLTCP_DAEMON": str(daemon.socket)}
        process = started(["unshare", "--cgroup", *RUN], step, env=environment)
        assert cgroup_of_program(process).startswith(below(step))
