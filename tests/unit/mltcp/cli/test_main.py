"""Bad input to `mltcp`: an error of one line that names the expected value, and exit status 2."""

import json
import os

import pytest

from mltcp.cli.main import main
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
    assert {"kernel BTF", "struct_ops", "capabilities", "bpffs", "cgroup v2", "qdisc tbf"} <= set(needs)
    assert all(need["present"] or need["remedy"] for need in needs.values())
    assert (status == 0) == all(need["present"] for need in needs.values() if need["required"])


def test_what_is_optional_does_not_decide():
    there = probe.Finding("a", True, "")
    assert probe.can_run([there, probe.Finding("b", False, "", "get b", required=False)])
    assert not probe.can_run([there, probe.Finding("c", False, "", "get c")])
