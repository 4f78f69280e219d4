"""`mltcp-bench --hosts` on four hosts that each run a real sshd: results, and what is left when something fails."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.hosts.shared_directory import WHERE_SSHD_LISTENS
from bench.lab.network import namespaces
from mltcp.core.errors import NotAvailableError
from tests.eventually import eventually
from tests.lab.ssh_hosts import NAMES, ROOT, is_available, processes_in, ssh_hosts

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not is_available(), reason="OpenSSH is missing: script/setup --ssh"),
]
SHORT = ["--compute", "0.05", "--repeat", "1"]
LONG = ["contend", *SHORT, "--policies", "cubic", "--iterations", "5000"]
_START_S = 180.0
_WITH_OTHER_TMPDIR = f'export PYTHONPATH={ROOT} TMPDIR=/dev/shm\nexec {sys.executable} "$@"'
_OTHER_VERSION = json.dumps(
    {
        "$": "Hello",
        "version": "0.0.1",
        "schema": "",
        "facts": {
            "$": "HostFacts",
            **dict.fromkeys(("name", "address", "interface", "system", "kernel", "machine"), "b"),
            **{"processors": 1, "driver": None, "mtu": 1500, "speed_bps": None},
        },
    }
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    try:
        namespaces.require_privileges()
    except NotAvailableError as error:
        pytest.skip(str(error))
    with ssh_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture(autouse=True)
def _usual_file(hosts):
    hosts.write()


def left(hosts):
    """The processes that are left on the hosts."""
    return [pid for name in NAMES for pid in processes_in(hosts.namespace(name))]


def running(hosts, arguments=LONG):
    """A long command under way: its agents and ranks are on all hosts, and have connections to each other."""
    process = subprocess.Popen(
        hosts.command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def has_begun():
        assert process.poll() is None, process.stderr.read()
        return all(hosts.carried(name) > 1_000_000 for name in NAMES)

    hosts.remember_carried()
    eventually(has_begun, _START_S)
    return process


def forwarded_sockets():
    """Where sshd listens for agents, until they have taken the sockets."""
    return {path for name in ("placement", "gate") for path in WHERE_SSHD_LISTENS.glob(f"mltcp-*.{name}")}


def test_cassini_and_the_gate_reach_the_ranks_through_ssh(hosts):
    hosts.write(b={"python": hosts.python(_WITH_OTHER_TMPDIR, "other_tmpdir")})
    before = forwarded_sockets()
    done = hosts.run(
        *("compare", "--jobs", "vgg16,vgg16", "--policies", "isolated,cassini,srsf-1", "--control", "cubic"),
        *("--iterations", "6", "--repeat", "1", "--json"),
    )
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["sets"]
    assert done.stderr == "", "a rank goes on without what it does not reach, and says so"
    runs = {run["approach"]: run for run in measured["runs"]}
    assert {shift["job"] for shift in runs["cassini"]["shifts"]} == {"vgg16-1", "vgg16-2"}
    assert len(runs["cassini"]["decisions_s"]) == 2
    assert all(len(job["iteration_s"]) == 6 for run in runs.values() for job in run["jobs"])
    assert not left(hosts)
    # Those of programs beside this one go too.
    eventually(lambda: forwarded_sockets() <= before)


def trace_file(directory, *jobs):
    """A trace of jobs by their workers, each later than the one before, at line rate for 3 ms of 10."""
    phases = [{"duration_s": 0.07, "bandwidth_bps": 0}, {"duration_s": 0.03, "bandwidth_bps": 50e9}]
    named = [
        {"name": f"j{number}", "workers": workers, "iterations": 100, "arrival_s": number, "phases": phases}
        for number, workers in enumerate(jobs)
    ]
    path = directory / "trace.json"
    path.write_text(json.dumps({"name": "trace", "source": "", "capacity_gbps": 50, "jobs": named}))
    return str(path)


def on_two_switches(hosts):
    """Have the hosts file say that a and c are on one switch, b and d on another."""
    hosts.write(
        **{name: {"switch": switch} for name, switch in zip(NAMES, ("x", "y", "x", "y"), strict=True)}
    )
    document = json.loads(hosts.file.read_text())
    hosts.file.write_text(json.dumps(document | {"uplinks": {"x": "300mbit", "y": "150mbit"}}))


def test_a_trace_is_placed_on_hosts_and_runs_to_its_end(hosts, tmp_path):
    on_two_switches(hosts)
    policies = "fair,themis+cassini,lwf-1+srsf-1"
    trace = trace_file(tmp_path, 2, 2)
    done = hosts.run(
        *("compare", "--trace", trace, "--policies", policies),
        *("--iterations", "6", "--repeat", "1", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (measured,) = json.loads(done.stdout)["sets"]
    assert measured["setting"]["uplink_y_bps"] == 150_000_000
    assert [host["name"] for host in measured["hosts"]] == list(NAMES)
    runs = {run["approach"]: run for run in measured["runs"]}
    for run in runs.values():
        assert all(len(job["iteration_s"]) == 6 for job in run["jobs"])
        assert sum(each["sent_bytes"] for each in run["hosts"]) > 1_000_000
    # First-fit fills switches, and both jobs find one of their own.
    assert [job["servers"] for job in runs["fair"]["jobs"]] == [["a", "c"], ["b", "d"]]
    assert {shift["job"] for shift in runs["themis+cassini"]["shifts"]} <= {"j0", "j1"}
    assert not left(hosts)


def test_a_host_that_is_lost_during_a_trace_is_named(hosts, tmp_path):
    on_two_switches(hosts)
    arguments = ("--policies", "fair", "--iterations", "5000", "--repeat", "1")
    process = running(hosts, ["compare", "--trace", trace_file(tmp_path, 4), *arguments])
    os.kill(hosts.agents()["d"], signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert error.startswith("mltcp-bench: host d: its agent has ended")
    assert error.count("\n") == 1
    assert not left(hosts)


def test_a_host_to_which_no_socket_is_forwarded_is_named(hosts):
    hosts.write()
    document = json.loads(hosts.file.read_text())
    document["ssh_options"] += ["-o", "ClearAllForwardings=yes"]
    hosts.file.write_text(json.dumps(document))
    done = hosts.run("compare", "--jobs", "vgg16,vgg16", "--policies", "cassini", "--iterations", "8")
    assert done.returncode == 1
    assert "mltcp-bench: host a: sshd: expected it to listen at /tmp/mltcp-" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not left(hosts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"python": "/nowhere/python"}, "host b: "),
        ({"python": "/usr/bin/false"}, "host b: its agent has ended"),
        ({"interface": "none0"}, "host b: interface: expected one of lo, eth0, got 'none0'"),
        ({"ssh": "10.77.9.9"}, "host b: ssh: connect to host 10.77.9.9 port"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(hosts, changes, message):
    hosts.write(b=changes)
    done = hosts.run(*LONG)
    assert done.returncode == 1
    assert done.stderr.startswith(f"mltcp-bench: {message}")
    assert done.stderr.count("\n") == 1
    assert not left(hosts)


def test_a_host_with_another_version_is_named(hosts):
    hosts.write(b={"python": hosts.python(f"echo '{_OTHER_VERSION}'\nexec cat >/dev/null", "other")})
    done = hosts.run(*LONG)
    assert done.returncode == 1
    assert "mltcp-bench: host b: expected mltcp 0.1.0 as here, got 0.0.1\n" in done.stderr
    assert not left(hosts)


def test_an_agent_that_dies_is_named_and_nothing_is_left_on_any_host(hosts):
    process = running(hosts)
    os.kill(hosts.agents()["b"], signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert error.startswith("mltcp-bench: host b: its agent has ended")
    assert error.count("\n") == 1
    assert not left(hosts)


def test_an_interrupted_run_leaves_nothing_on_any_host(hosts):
    process = running(hosts)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert not left(hosts)


def test_agents_end_when_their_launcher_is_killed(hosts):
    process = running(hosts)
    process.kill()
    process.communicate(timeout=120)
    eventually(lambda: not left(hosts))


def test_collectives_over_all_hosts(hosts):
    done = hosts.run("allreduce", "--backends", "gloo", "-b", "64K", "-e", "64K", "-n", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ranks"], document["ok"]) == (4, True)
    assert [host["address"] for host in document["hosts"]] == [host.address for host in hosts.hosts.values()]
    # The link of 300 Mbit/s is between ranks: on loopback this would be far faster.
    assert document["results"][0]["busbw_gbps"] < 0.3 / 8 * 2.5
    assert not left(hosts)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="the hosts have a GPU")
def test_a_host_without_a_gpu_is_named(hosts):
    done = hosts.run("allreduce", "--device", "cuda", "--ranks", "2")
    assert done.returncode == 1
    assert ": --device cuda: expected a CUDA device, and torch finds none on this host" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not left(hosts)


def test_contention_of_jobs_on_hosts(hosts, tmp_path):
    output = tmp_path / "contention.csv"
    done = hosts.run(
        *("contention", "--jobs", "1,2", "--sizes", "2M", "--repeat", "2", "-o", output, "--json")
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(output.read_text().splitlines()) >= 4
    # At 300 Mbit/s a 2 MB all-reduce of two ranks takes 56 ms and more.
    assert all(time_us > 50_000 for each in document["measurements"] for time_us in each["times_us"])
    assert [host["name"] for host in document["hosts"]] == list(NAMES)
    assert not left(hosts)


def test_a_host_that_stops_answering_is_named_and_cleans_up_by_itself(hosts):
    impatient = hosts.python(f'export PYTHONPATH={ROOT}\nexec {sys.executable} "$@" --silence 8', "impatient")
    hosts.write(b={"python": impatient})
    document = json.loads(hosts.file.read_text())
    document["ssh_options"] += ["-o", "ServerAliveInterval=2", "-o", "ConnectTimeout=5"]
    hosts.file.write_text(json.dumps(document))
    process = running(hosts)
    with hosts.unplugged("b"):
        _, error = process.communicate(timeout=180)
        assert process.returncode == 1
        assert error.startswith("mltcp-bench: ")
        assert "host b: its agent has ended: Timeout, server 10.77.1.1 not responding." in error
        assert error.count("\n") == 1
        # Its agent hears nothing any more, and ends without being told.
        eventually(lambda: not left(hosts))
