"""Trainers of others, on two ranks: with the backend they compute the same, bit by bit, and its iterations are theirs.

Trainers that are not installed are skipped: ``pip install -c constraints.txt -e .[trainers]``.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from collectives.elastic.checkpoints.checkpoint_directory import progress_of

pytestmark = pytest.mark.slow

SETTINGS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "MLTCP_CC": "none",
    "OMP_NUM_THREADS": "1",
    "MLTCP_DAEMON": "none",
    "DS_ACCELERATOR": "cpu",
}
LIMIT_S = 300  # DeepSpeed compiles a part of itself when it is first used


@dataclass(frozen=True)
class TrainerProgram:
    """A program of this folder, the package that it needs, and whether it takes the backend's name as an argument."""

    name: str
    package: str = "torch"
    named: bool = False


PROGRAMS = (
    TrainerProgram("with_torchrun"),
    TrainerProgram("with_fsdp2"),
    TrainerProgram("with_deepspeed", "deepspeed"),
    TrainerProgram("with_skipped_steps"),
    TrainerProgram("with_accelerate", "accelerate"),
    TrainerProgram("with_accelerate_checkpoints", "accelerate"),
    TrainerProgram("with_lightning", "lightning", named=True),
    TrainerProgram("with_lightning_checkpoints", "lightning", named=True),
    TrainerProgram("with_transformers", "transformers"),
    TrainerProgram("with_transformers_checkpoints", "transformers"),
)


def train(program, directory, backend, **environment):
    """Run the program under torchrun; returns its report."""
    directory.mkdir()
    file = directory / "report.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command += [f"tests.trainers.programs.{program.name}", str(file), backend]
    around = {name: value for name, value in os.environ.items() if not name.startswith("MLTCP_")}
    done = subprocess.run(
        command, env={**around, **SETTINGS, **environment}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(file.read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_trainer_computes_the_same_and_its_iterations_are_found(program, tmp_path):
    if importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.package} is not installed")
    profile = tmp_path / "profile.json"
    plain = train(program, tmp_path / "plain", "gloo")
    if program.named:
        ours = train(program, tmp_path / "ours", "mltcp", MLTCP_PROFILE=str(profile))
    else:
        ours = train(program, tmp_path / "ours", "gloo", MLTCP_WRAP="gloo", MLTCP_PROFILE=str(profile))
    assert ours == plain
    found = json.loads(profile.read_text())
    assert found["iterations"] == plain["steps"], found["detection"]


ELASTIC = ("elastic_accelerate", "elastic_lightning", "elastic_transformers")


def train_elastic(program, directory, ranks, stop_at=None):
    """Run a program that may stop, asked to in its n-th optimizer step; returns the header of its checkpoint."""
    module = ["tests.trainers.programs.stopping", program, str(stop_at or -1)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", *module, str(directory / "report.json"), str(directory / "checkpoints")]
    around = {name: value for name, value in os.environ.items() if not name.startswith("MLTCP_")}
    done = subprocess.run(
        command, env={**around, **SETTINGS}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return progress_of(directory / "checkpoints")


@pytest.mark.parametrize("program", ELASTIC)
def test_a_trainer_stops_and_goes_on_with_other_ranks(program, tmp_path):
    package = program.removeprefix("elastic_")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    alone, changed = tmp_path / "alone", tmp_path / "changed"
    for directory in (alone, changed):
        directory.mkdir()
    whole = train_elastic(program, alone, 1)
    assert whole.samples_done == whole.total_samples == 3 * 128
    begun = train_elastic(program, changed, 2, stop_at=10)
    assert begun.samples_done == 11 * 16, "flags travel with a step: the stop is at the end of the next one"
    header = train_elastic(program, changed, 1)
    assert [(each.end, each.ranks) for each in header.segments] == [(11 * 16, 2), (3 * 128, 1)]
    expected, found = (json.loads((each / "report.json").read_text()) for each in (alone, changed))
    # Adam makes steps of one size of gradients that are zero but for rounding: there losses are compared, of all steps.
    what = "losses" if package == "transformers" else "weights"
    pairs = zip(expected[what], found[what], strict=True)
    assert all(math.isclose(*map(float.fromhex, pair), rel_tol=1e-3, abs_tol=1e-6) for pair in pairs)
