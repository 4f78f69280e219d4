"""`mltcp-bench sensitivity` end to end: real collectives of jobs on shared hosts, and kept runs."""

import json
import os
import signal
import subprocess
import sys

import pytest

from placement.model.throughput_table import Layout, read_table
from tests.lab.lab_commands import RunningCommand, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("sensitivity")]
SENSITIVITY = [sys.executable, "-m", "bench.cli", "sensitivity"]
SHORT = ["--policies", "cubic", "--models", "MoE", "--gpus", "2", "--warm-up", "0.3"]
MOE = Layout("MoE", 2, 2)


def test_a_table_is_measured_kept_and_read(tmp_path):
    for seconds in ("2", "20"):
        command = [*SENSITIVITY, *SHORT, "--seconds", seconds, "--json", "-o", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # A busy machine may let no iteration end in a short time, which the command says.
        if "give it more --seconds" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    (control,) = json.loads(done.stdout)["controls"]
    assert len(control["cells"]) == 1
    (isolated,) = control["isolated"]
    # However busy the machine is: the bytes of one job, and those of two, take their time on a host's link.
    sending_s = 929.48e6 * 0.2 / 100 * 8 / 100e6
    assert isolated["iteration_s"] >= 0.9 * sending_s
    assert isolated["iteration_s"] / read_table(tmp_path / "cubic").ratio(MOE, MOE) >= 0.9 * 2 * sending_s
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["controls"] == [control]


def test_an_interrupt_leaves_nothing_but_kept_runs(tmp_path):
    running = RunningCommand(["sensitivity", *SHORT, "--seconds", "60", "-o", str(tmp_path)], ranks=4)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (130, "mltcp-bench: interrupted; the lab has been removed")
    assert not left_in_labs(running.namespaces)
