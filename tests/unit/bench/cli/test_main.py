"""Bad input to `mltcp-bench`: one line that names what is expected, exit status 2, and nothing done."""

import importlib
import json
import subprocess
import sys

import pytest

from bench.cli.main import SUBCOMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "vgg99"], ["vgg99", "vgg16", "resnet50"]),
        (["--policies", "no_such_cc"], ["no_such_cc", "isolated", "mltcp_reno"]),
        (["--policies", "mltcp_reno@steep"], ["steep", "linear", "quadratic"]),
        (["--policies", "mltcp_reno@start=now"], ["now", "kernel", "avoid", "keep"]),
        (["--policies", "mltcp_reno@speed=3"], ["speed", "slope", "intercept"]),
        (["--policies", "reno@quadratic"], ["reno@quadratic", "mltcp_reno"]),
        (["--policies", "mltcp_dcqcn@speed=3"], ["speed", "slope", "intercept"]),
        (["--policies", "dcqcn@interval=soon"], ["soon", "a number"]),
        (["--policies", "dcqcn@base=no_such_cc"], ["no_such_cc", "cubic"]),
        (["--rate", "fast"], ["fast", "mbit"]),
        (["--rate", "0mbit"], ["0mbit"]),
        (["--queue", "much"], ["much", "40kb"]),
        (["--ecn", "400kb", "--queue", "300kb"], ["ecn"]),
        (["--iterations", "0"], ["--iterations", "1 or more", "got 0"]),
        (["--repeat", "-1"], ["--repeat", "1 or more", "got -1"]),
        (["--retry-busy", "-1"], ["--retry-busy", "0 or more", "got -1"]),
        (["--perturb", "often"], ["often", "20:0.15"]),
        (["--scale", "big"], ["big", "auto"]),
        (["--fraction", "1.5"], ["1.5"]),
        (["--stagger", "-1"], ["--stagger", "0"]),
        (["--jobs", ""], ["--jobs"]),
        (["--ranks", "1"], ["rank"]),
    ],
)
def test_contend_refuses(arguments, words, capsys):
    assert main(["contend", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err


def test_a_malformed_profile_is_named(tmp_path, capsys):
    profile = tmp_path / "mine.json"
    profile.write_text(json.dumps({"name": "mine", "forward_s": -1}))
    assert main(["contend", "--jobs", str(profile)]) == 2
    assert str(profile) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--policies", "isolated"], ["--policies", ""]])
def test_bulk_refuses(arguments, capsys):
    assert main(["bulk", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["contend", "bulk"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"mltcp-bench {command}" in capsys.readouterr().out.split("examples:")[1]


@pytest.mark.parametrize(
    ("command", "rate", "queue", "ecn"),
    [
        ("contend", "300mbit", "300kb", "40kb"),
        ("async", "20mbit", "60kb", "15kb"),
        ("async-jobs", "40mbit", "60kb", "none"),
        ("sensitivity", "100mbit", "200kb", "30kb"),
    ],
)
def test_help_tells_the_link_that_the_command_has(command, rate, queue, ecn, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert f"rate of the bottleneck (default {rate})" in words
    assert f"its queue limit (default {queue})" in words
    assert f"or `none` (default {ecn})" in words


def test_help_imports_no_command(capsys):
    script = (
        "import sys\nfrom bench.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({'numpy', 'torch', 'grpc', 'rich', 'pyroute2', 'bench.lab'} & set(sys.modules)), 'end')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "end"


@pytest.mark.parametrize("command", ["alone", "compare", "contend", "contention", "sensitivity"])
def test_commands_leave_torch_to_their_ranks(command):
    script = (
        "import sys\nfrom bench.cli.main import main\n"
        f"try:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(each.name in printed for each in SUBCOMMANDS)


def test_a_missing_dependency_is_one_line_that_names_the_extra(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert main(["contend"]) == 1
    assert capsys.readouterr().err == "mltcp-bench: torch is not installed; pip install 'mltcp[bench]'\n"


def test_a_missing_module_of_the_project_is_an_error_of_the_program(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'bench.lost'", name="bench.lost")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        main(["contend"])
