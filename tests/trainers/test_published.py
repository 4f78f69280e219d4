"""Programs that others have written or described compute the same with the backend as without it, bit by bit.

Each runs as it is on two ranks, twice: on Gloo, and with its groups built by the backend. What is compared is a digest
of all parameters after every optimizer step of every rank. Those of packages that are not installed are skipped:
``pip install -c constraints.txt -e .[trainers]``.
"""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none", "OMP_NUM_THREADS": "1", "MLTCP_DAEMON": "none"}
# torchrun gives restarted ranks the store of those before, with the addresses of these, where Gloo may find them.
SETTINGS["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
LIMIT_S = 600
OF_ACCELERATE = "accelerate.test_utils.scripts"
OURS = "tests.trainers.published"


@dataclass(frozen=True)
class Program:
    """A module, the package that it needs, and how many optimizer steps an iteration has; 0: they are not alike."""

    module: str
    package: str = "torch"
    steps: int = 1
    restarts: int = 0

    @property
    def name(self):
        return self.module.rpartition(".")[2]


PROGRAMS = (
    Program(f"{OF_ACCELERATE}.test_script", "accelerate", steps=0),
    Program(f"{OF_ACCELERATE}.test_sync", "accelerate", steps=0),
    Program(f"{OF_ACCELERATE}.test_ops", "accelerate", steps=0),
    Program(f"{OURS}.lightning_boring", "lightning"),
    Program(f"{OURS}.lightning_manual", "lightning"),
    Program(f"{OURS}.lightning_lstm", "lightning"),
    Program(f"{OURS}.lightning_transformer", "lightning"),
    Program(f"{OURS}.bert_no_trainer", "transformers"),
    Program(f"{OURS}.ddp_tutorial"),
    Program(f"{OURS}.elastic_snapshots", restarts=1),
    Program(f"{OURS}.gan", steps=2),
)


def run(program, directory, **environment):
    """The report of every rank."""
    reports = directory / "reports"
    reports.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [
        f"--max-restarts={program.restarts}",
        "-m",
        "tests.trainers.observed",
        str(reports),
        program.module,
    ]
    around = {name: value for name, value in os.environ.items() if not name.startswith("MLTCP_")}
    around |= (
        SETTINGS
        | {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        | environment
    )
    done = subprocess.run(command, cwd=directory, env=around, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((reports / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_of_others_learns_the_same(program, tmp_path):
    if importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.package} is not installed")
    profile = tmp_path / "profile.json"
    plain = run(program, tmp_path / "plain")
    ours = run(program, tmp_path / "ours", MLTCP_WRAP="gloo", MLTCP_PROFILE=str(profile))
    assert ours == plain
    found = json.loads(profile.read_text())
    if program.steps:
        assert plain[0]["steps"] > 0
        assert found["iterations"] * program.steps == plain[0]["steps"], found["detection"]
