"""`mltcp run` and the backend where a daemon answers: no privilege is needed, and the job is the daemon's."""

import os
import subprocess
import sys

import pytest

from bench.lab.network import namespaces
from mltcp.daemon.client.client import Client
from mltcp.ebpf.jobs import CGROUP
from mltcp.ebpf.mounts import cgroup_root
from tests.lab.daemons import daemon_in, namespace_with_link
from tests.lab.test_daemon import MARK, PACED, until
from tests.unit.mltcp.daemon.serving import NOBODY

pytestmark = pytest.mark.lab

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


@pytest.fixture
def namespace():
    with namespace_with_link() as name:
        yield name


def run_as_nobody(daemon, *options):
    """`mltcp run` by another user; its modules are loaded before it becomes that user, who may not read them here."""
    code = (
        "import os, sys\n"
        "import mltcp.cli.main, mltcp.cli.run, mltcp.daemon.client.membership, encodings.idna\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"sys.exit(mltcp.cli.main.main(['run', *{list(options)!r}, '--', '/usr/bin/python3', '-c', {PROGRAM!r}]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLTCP_DAEMON": str(daemon.socket)},
    )


def said_by(process):
    """The words of the program's first line; a program that ended without one shows why."""
    line = process.stdout.readline()
    assert line, process.communicate(timeout=20)[1]
    return line.split()


def test_a_user_runs_a_program_under_ebpf_without_privilege(namespace):
    with daemon_in(namespace) as daemon:
        process = run_as_nobody(
            daemon, "--job", "bert", "--cc", "mltcp_reno", "--total-bytes", "10000", "--gap", "1"
        )
        assert said_by(process)[0] == "mltcp_reno"
        with Client(daemon.socket) as client:
            until(lambda: [job.bytes_ratio for job in client.status().jobs] == [0.5])
            (job,) = client.status().jobs
            assert (job.job, job.user, job.how, job.control) == ("bert", "nobody", "kernel", "mltcp_reno")
            _, told = process.communicate(timeout=20)
            assert process.returncode == 7, told
            until(lambda: client.status().jobs == ())


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
        return sorted(path.name for path in (cgroup_root() / CGROUP).glob("bertha:*"))

    with daemon_in(namespace) as daemon:
        process = run_as_nobody(daemon, "--job", "bertha")
        said_by(process)
        assert len(cgroups()) == 1
        process.communicate(timeout=20)
        until(lambda: cgroups() == [])


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
