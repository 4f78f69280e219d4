"""`mltcp-bench sensitivity` end to end: real collectives of two models on shared hosts, and kept runs."""

import json
import os
import signal
import subprocess
import sys

import pytest

from placement.model.throughput.table import Layout, read_table
from tests.lab.lab_commands import RunningCommand, left_in_labs

pytestmark = pytest.mark.lab
SENSITIVITY = [sys.executable, "-m", "bench.cli", "sensitivity"]
SHORT = ["--policies", "cubic", "--models", "FSDP,MoE", "--gpus", "2", "--warm-up", "0.3"]
FSDP, MOE = Layout("FSDP", 2, 2), Layout("MoE", 2, 2)


def test_a_table_of_two_models_is_measured_kept_and_read(tmp_path):
    command = [*SENSITIVITY, *SHORT, "--seconds", "1.2", "--json", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (control,) = json.loads(done.stdout)["controls"]
    assert len(control["cells"]) == 4
    table = read_table(tmp_path / "cubic")
    # Two jobs that would each fill the links for most of the time cannot both have them.
    assert table.ratio(FSDP, FSDP) < 0.8
    isolated = {each["model"]: each["iteration_s"] for each in control["isolated"]}
    # An iteration takes no less than its bytes take on a host's link.
    assert isolated["FSDP"] >= 0.9 * 2672.4e6 * 0.2 / 100 * 8 / 100e6
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["controls"] == [control]


def test_an_interrupt_leaves_nothing_but_kept_runs(tmp_path):
    running = RunningCommand(["sensitivity", *SHORT, "--seconds", "60", "-o", str(tmp_path)], 12)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (130, "mltcp-bench: interrupted; the lab has been removed")
    assert not left_in_labs(running.namespaces)
