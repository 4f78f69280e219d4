"""The wrapper of a rank and its launcher's end: commands as they were written, and reports of the wrapper's only."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.engines import rank
from placement.engines.launcher import PYTHON, RankReports

PATIENCE_S = 60
TELL = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
ARGUMENTS = st.binary(max_size=30).map(lambda data: os.fsdecode(data.replace(b"\0", b"$")))


def run(command, logs, log_bytes=1 << 20, number=0):
    """Run a command as a rank, whose torchrun is this process; its report and its log."""
    reports = RankReports(range(2), {"command": command, "logs": str(logs), "log_bytes": log_bytes})
    reports.listen_to(os.getpid())
    environment = {**os.environ, rank.REPORTS: reports.name, "RANK": str(number)}
    wrapper = subprocess.Popen([*PYTHON, "-m", rank.__name__], env=environment, stderr=subprocess.PIPE)
    found = []
    while not found and wrapper.poll() is None:
        select.select([reports], [], [], 0.1)
        found += reports.take()
    _, complaints = wrapper.communicate(timeout=PATIENCE_S)
    found += reports.take()
    reports.close()
    log = logs / rank.log_name(number)
    ends = [(each.rank, each.status, each.signalled) for each in found]
    return ends, log.read_bytes() if log.exists() else b"", complaints


SPECIAL = [
    *(
        "$$",
        "${local_rank}",
        "$local_rank",
        "${rank}",
        "$",
        "${",
        "${}",
        "$${x}",
        "%s",
        "{}",
        "%%",
        "\\",
        "\\$",
    ),
    *(
        "",
        " ",
        "\n",
        "--",
        "-m",
        "--nnodes=9",
        "*",
        "~",
        "'",
        '"',
        "`id`",
        "$(id)",
        "é",
        "\udcff",
        "@file",
        "a=b",
    ),
]


def test_special_arguments_arrive(tmp_path):
    found, log, _ = run([sys.executable, "-c", TELL, *SPECIAL], tmp_path)
    assert found == [(0, 0, False)]
    assert [os.fsdecode(each) for each in log.split(b"\0")] == SPECIAL


@settings(max_examples=15)
@given(st.lists(ARGUMENTS, min_size=1, max_size=200))
def test_any_arguments_arrive(tmp_path_factory, arguments):
    _, log, _ = run([sys.executable, "-S", "-c", TELL, *arguments], tmp_path_factory.mktemp("logs"))
    assert [os.fsdecode(each) for each in log.split(b"\0")] == arguments


def test_a_command_may_be_longer_than_a_variable(tmp_path):
    arguments = ["x" * 100_000] * 10
    _, log, _ = run([sys.executable, "-S", "-c", TELL, *arguments], tmp_path, log_bytes=1 << 22)
    assert log.decode().split("\0") == arguments


def test_what_a_rank_prints_without_end_is_bounded_and_the_rank_goes_on(tmp_path):
    found, log, _ = run(["sh", "-c", "yes | head -c 200000000; echo the end"], tmp_path, log_bytes=1 << 16)
    assert found == [(0, 0, False)]
    assert len(log) <= 1 << 16
    assert log.startswith(b"y\ny\n")
    assert log.endswith(b"y\nthe end\n")


def test_what_holds_the_output_of_a_rank_that_has_ended_keeps_nobody_waiting(tmp_path):
    found, log, _ = run(["sh", "-c", "(trap '' HUP; sleep 86400) & echo $!"], tmp_path)
    os.kill(int(log), 9)
    assert found == [(0, 0, False)]


@pytest.mark.parametrize("command", [["no-such-program"], ["x\0y"], [""]])
def test_what_cannot_be_run_is_said_in_the_log(tmp_path, command):
    found, log, _ = run(command, tmp_path)
    assert found == [(0, 127, False)]
    assert log.startswith(b"cannot run ")


FORGE = textwrap.dedent(
    """
    import json, os, socket, sys
    # Those of the process that listens for this rank: other tests beside this one have theirs.
    own = [os.path.basename(os.path.realpath(each)) for each in os.scandir(f"/proc/{sys.argv[1]}/fd")]
    lines = [line.split() for line in open("/proc/net/unix") if "@mltcp-ranks-" in line]
    names = [line[-1] for line in lines if f"socket:[{line[6]}]" in own]
    for name in set(names):
        forged = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        forged.connect(chr(0) + name[1:])
        try:
            forged.sendall(b'{"rank": 1}\\n{"status": 3, "signalled": false}\\n')
            print(forged.recv(100), flush=True)
        except ConnectionError:
            print("refused", flush=True)
    """
)


def test_a_rank_cannot_report_for_another(tmp_path, capfd):
    found, log, _ = run([sys.executable, "-c", FORGE, str(os.getpid())], tmp_path)
    assert found == [(0, 0, False)]
    assert set(log.splitlines()) in ({b"b''"}, {b"refused"})
    assert capfd.readouterr().err.count("is no rank's, and was not listened to") == 1


@pytest.mark.parametrize(
    "sent",
    [
        *(b"\n", b"{}\n", b"[]\n", b"null\n", b'{"rank": 2}\n', b'{"rank": true}\n', b'{"rank": -1}\n'),
        *(
            b"\xff\n",
            b"[" * 4000 + b"\n",
            b"x" * 100_000,
            b'{"rank": "0"}\n',
            b'{"rank": ' + b"9" * 4000 + b"}\n",
        ),
        b'{"rank": 0}\n{"status": 256, "signalled": false}\n',
        b'{"rank": 0}\n{"status": 0}\n',
        b'{"rank": 0}\n{"status": 0, "signalled": 0}\n',
        b'{"rank": 0}\nfalse\n',
    ],
)
def test_a_wrapper_that_was_taken_over_is_not_believed(sent):
    reports = RankReports(range(2), {})
    reports.listen_to(os.getppid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wrapper:
        wrapper.connect(f"\0{reports.name}")
        wrapper.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            wrapper.sendall(sent)
        assert [each for _ in range(3) for each in reports.take()] == []
    reports.close()
