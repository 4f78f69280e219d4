"""Bad input to `mltcp`: an error of one line that names the expected value, and exit status 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltcp.cli.main import SUBCOMMANDS, main
from mltcp.core.errors import NotAvailableError
from mltcp.ebpf import probe


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["load", "mltcp_vegas"], ["mltcp_vegas", "mltcp_reno", "mltcp_cubic", "mltcp_dctcp"]),
        (["run"], ["nothing to run"]),
        (["run", "--function", "steep", "--", "true"], ["steep", "linear"]),
        (["run", "--slope", "-1", "--", "true"], ["slope"]),
        (["run", "--total-bytes", "0", "--", "true"], ["--total-bytes", "positive", "0"]),
        (["run", "--gap", "0", "--", "true"], ["--gap"]),
        (["run", "--start", "now", "--", "true"], ["now", "kernel", "avoid", "keep"]),
        (["run", "--wrap", "mpi", "--", "true"], ["--wrap", "gloo, nccl", "mpi"]),
        (["attach", "--cgroup", "/tmp", "--job", "a"], ["/tmp", "the directory of a cgroup"]),
        (["attach", "--pid", "0", "--job", "a"], ["--pid", "number of a process", "0"]),
        (["attach", "--pid", "1", "--job", "a", "--gap", "0"], ["--gap"]),
        (["detach", "--cgroup", "/no/such"], ["/no/such", "No such file"]),
        (["run", "--decrease", "2", "--", "true"], ["--decrease", "between 0 and 1"]),
    ],
)
def test_refuses(arguments, words, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err


@pytest.mark.skipif(os.geteuid() == 0, reason="as root it may")
@pytest.mark.parametrize("arguments", [["load"], ["unload"], ["status"], ["run", "--", "true"]])
def test_without_root_it_says_so(arguments, capsys):
    assert main(arguments) == 1
    assert "needs root" in capsys.readouterr().err


@pytest.mark.slow
def test_probe_names_every_need_and_its_remedy(capsys):
    status = main(["probe", "--json"])
    document = json.loads(capsys.readouterr().out)
    needs = {need["need"]: need for need in document["needs"]}
    assert {"kernel BTF", "struct_ops", "capabilities", "cgroup v2", "qdisc tbf"} <= set(needs)
    assert all(need["present"] or need["remedy"] for need in needs.values())
    assert (status == 0) == all(need["present"] for need in needs.values() if need["required"])


@pytest.mark.parametrize("kernel", [probe.BTF, Path("/some/vmlinux")])
def test_a_missing_compiler_or_library_is_one_line_with_its_package(monkeypatch, kernel):
    def compiled(*_):
        raise NotAvailableError("reno.bpf.c has to be compiled and clang is missing: apt-get install clang")

    monkeypatch.setattr(probe, "control_object", compiled)
    (found,) = probe.kernel_fit(kernel)
    assert (found.detail, found.remedy) == (
        "reno.bpf.c has to be compiled and clang is missing",
        "apt-get install clang",
    )
    missing = probe.Finding("libbpf 1.0 or newer", False, "it is missing", "apt-get install libbpf1")
    monkeypatch.setattr(probe, "_libbpf", lambda: missing)
    # probe() of this host has the line already
    assert probe.kernel_fit(kernel) == ([] if kernel == probe.BTF else [missing])


@pytest.mark.parametrize(
    ("user", "remedy", "words"),
    [
        (
            1000,
            "run as root",
            "only root can find out whether the kernel mode can run here: run it with sudo",
        ),
        (1000, "apt-get install libbpf1", "the kernel mode cannot run here: see what is MISSING above"),
        (0, "run as root", "the kernel mode cannot run here: see what is MISSING above"),
    ],
)
def test_what_only_root_can_try_is_not_said_to_be_impossible(monkeypatch, capsys, user, remedy, words):
    monkeypatch.setattr("mltcp.cli.probe.probe", lambda: [probe.Finding("a", False, "", remedy)])
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert main(["probe"]) == 1
    assert words in capsys.readouterr().out.splitlines()[-1]


def test_what_is_optional_does_not_decide():
    there = probe.Finding("a", True, "")
    assert probe.can_run([there, probe.Finding("b", False, "", "get b", required=False)])
    assert not probe.can_run([there, probe.Finding("c", False, "", "get c")])


EACH_COMMAND = """
import sys
from mltcp.cli.main import main

for arguments in (
    ["probe"], ["load"], ["unload"], ["status"], ["run", "--", "true"], ["attach", "--pid", "1", "--job", "a"],
    ["detach", "--cgroup", "/"], ["daemon"], ["restore"], ["top"],
):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    print(f"{arguments[0]} ends with {status}", file=sys.stderr)
"""


def test_without_proc_a_command_ends_with_one_line():
    inside = 'mount -t tmpfs none /proc && exec "$@"'
    options = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *options, "--mount", "sh", "-c", inside, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    done = subprocess.run(
        [*command, sys.executable, "-c", EACH_COMMAND], capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert [line for line in lines if " ends with " in line] == [
        f"{each.name} ends with 1" for each in SUBCOMMANDS
    ], done.stderr
    errors = [line for line in lines if " ends with " not in line]
    assert all(line.startswith("mltcp: ") for line in errors), done.stderr
