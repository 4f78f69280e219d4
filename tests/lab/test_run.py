"""`mltcp run` as a person uses it: a command line, a program, its exit status, and nothing left behind."""

import os
import signal
import subprocess
import sys

import pytest

from mltcp.core.cgroups import cgroup_root

pytestmark = pytest.mark.lab
MLTCP = [sys.executable, "-m", "mltcp.cli"]
# A control of the kernel's own: these tests leave the host's MLTCP controls, loaded or not, as they are.
RENO = ["--cc", "reno"]
PRINT_CONTROL = """
import socket
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
for end in (sender, server.accept()[0]):
    print(end.getsockopt(socket.IPPROTO_TCP, 13, 16).split(b"\\0")[0].decode())
"""


def mltcp(*arguments, **options):
    return subprocess.run([*MLTCP, *arguments], capture_output=True, text=True, check=False, **options)


def job_cgroups():
    return list((cgroup_root() / "mltcp").glob("mltcp:tested:*"))


def test_sockets_of_the_program_get_the_control_on_both_ends():
    done = mltcp("run", "--job", "tested", *RENO, "--", sys.executable, "-c", PRINT_CONTROL)
    assert (done.returncode, done.stdout.split()) == (0, ["reno", "reno"]), done.stderr
    assert job_cgroups() == []


def test_the_torch_backend_is_told_to_keep_to_the_control():
    done = mltcp("run", *RENO, "--", "sh", "-c", "echo $MLTCP_CC")
    assert done.stdout.strip() == "reno"


@pytest.mark.parametrize(("program", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_status_is_the_programs(program, status):
    assert mltcp("run", *RENO, "--", "sh", "-c", program).returncode == status


def test_a_program_that_does_not_exist():
    done = mltcp("run", *RENO, "--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr.strip() == "mltcp: no-such-program: command not found"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--cc", "no_such_cc"], 2, ["no_such_cc", "reno"]),
        (["--job", "a job"], 2, ["a job", "letters"]),
        (["--user", "nobody-here", *RENO], 2, ["nobody-here"]),
    ],
)
def test_bad_input(arguments, status, words):
    done = mltcp("run", *arguments, "--", "true")
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


def test_the_program_runs_as_the_user_asked_for():
    done = mltcp("run", *RENO, "--user", "nobody", "--", "id", "-un")
    assert done.stdout.strip() == "nobody"


def test_processes_that_outlive_the_program_are_let_go():
    done = mltcp("run", "--job", "tested", *RENO, "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    pid = done.stdout.strip()
    try:
        with open(f"/proc/{pid}/cgroup") as groups:
            assert "tested" not in groups.read()
    finally:
        subprocess.run(["kill", pid], check=True)
    assert job_cgroups() == []


def test_a_terminated_run_ends_its_program_and_cleans_up():
    running = subprocess.Popen(
        [*MLTCP, "run", "--job", "tested", *RENO, "--", "sh", "-c", "echo started; exec sleep 60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "started\n"
    running.terminate()
    assert running.wait(20) == 143
    assert job_cgroups() == []


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the wrapper", "to the group"])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGINT])
def test_a_program_that_handles_a_signal_gets_it_once_and_its_wrapper_outlives_it(number, send):
    program = (
        f'trap "echo got" {number.name[3:]}; trap "exit 7" TERM; echo ready; while :; do sleep 0.1; done'
    )
    with subprocess.Popen(
        [*MLTCP, "run", "--job", "tested", *RENO, "--", "sh", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        assert running.stdout.readline() == "ready\n"
        send(running.pid, number)
        assert running.stdout.readline() == "got\n"
        running.terminate()
        assert running.wait(20) == 7
        assert running.stdout.read() == ""
    assert job_cgroups() == []


def test_as_process_1_it_reaps_orphans_and_is_ended_by_a_signal_to_it():
    # The orphan's parent ends at once, and the program waits until the orphan has been reaped.
    orphan = "p=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); while [ -e /proc/$p ]; do sleep 0.1; done"
    program = f"{orphan}; kill -TERM 1; sleep 60"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*command, *MLTCP, "run", "--job", "tested", *RENO, "--", "sh", "-c", program],
        timeout=50,
        check=False,
    )
    assert done.returncode == 143
    assert job_cgroups() == []


@pytest.mark.parametrize("inner", [["unshare", "--pid", "--fork", "--mount-proc"], []], ids=["there", "here"])
def test_a_run_of_another_process_namespace_does_not_remove_its_cgroup(inner):
    outer = [] if inner else ["unshare", "--pid", "--fork", "--mount-proc"]
    command = [*MLTCP, "run", "--job", "tested", *RENO, "--", "sh", "-c", "echo started; read line"]
    with subprocess.Popen(
        [*inner, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "started\n"
        (cgroup,) = job_cgroups()
        subprocess.run([*outer, *MLTCP, "run", "--job", "other", *RENO, "--", "true"], check=True)
        assert job_cgroups() == [cgroup]
        running.communicate("\n")
    assert job_cgroups() == []
