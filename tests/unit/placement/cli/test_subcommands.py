"""`mltcp-placement` imports the module of the command that it is given, and no other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from placement.cli.main import SUBCOMMANDS, main

ROOT = Path(__file__).resolve().parents[4]
HEAVY = ("numpy", "numba", "matplotlib", "scapy", "grpc", "google", "torch")
# Runs the command in an interpreter in which the heavy modules cannot be imported.
WITHOUT_EXTRAS = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from placement.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_extras(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_help_needs_no_extra():
    done = run_without_extras("--help")
    assert (done.returncode, done.stderr) == (0, "")
    examples = done.stdout.partition("examples:")[2]
    for each in SUBCOMMANDS:
        assert re.search(rf"\n    {each.name}\s", done.stdout)
        assert f"mltcp-placement {each.name}" in examples


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve"], "service"),
        (["status"], "service"),
        (["gate", "--listen", "unix:/nowhere/gate"], "placement"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(arguments, extra):
    done = run_without_extras(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mltcp-placement: ")
    assert done.stderr.endswith(f" is not installed; pip install 'mltcp[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_bad_usage_needs_no_extra():
    done = run_without_extras("nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", [each.name for each in SUBCOMMANDS])
def test_each_has_help(capsys, name):
    with pytest.raises(SystemExit) as leaving:
        main([name, "--help"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: mltcp-placement {name} ")
