"""The roles of a job's ranks: a training under torchrun that is stopped and goes on with other ranks, and bad input."""

import os
import signal
import subprocess
import sys

import pytest

from bench.warm.client import TRAININGS
from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from collectives.parameter_server.job_role import job_role
from mltcp.core.errors import UsageError
from tests.eventually import eventually

SCRIPT = """
import sys
import torch
from collectives.parameter_server.job_role import job_role

torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
with job_role(servers=2) as role:
    if role.number is None:
        torch.manual_seed(2)
        with role.join(model) as worker:
            while not worker.stopped:
                model(torch.randn(8, 4)).square().mean().backward()
                worker.step(samples=8)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        updates = int(sys.argv[1]) or None
        role.serve(model, optimizer, checkpoints="job", updates=updates)
"""


@pytest.fixture
def train(tmp_path):
    """Starts a training with so many ranks and updates; it is killed at the end."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none", "OMP_NUM_THREADS": "1"}
    running = []

    def begin(ranks, updates):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["train.py", str(updates)]
        running.append(
            subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        )
        return running[-1]

    yield begin
    for each in running:
        with each:
            each.kill()


@pytest.mark.slow
@pytest.mark.warm(*TRAININGS, "collectives.parameter_server.server", "collectives.parameter_server.worker")
def test_a_job_that_is_stopped_goes_on_with_other_ranks(train, tmp_path):
    def samples():
        found = [progress_of(tmp_path / "job" / f"server-{number}") for number in (0, 1)]
        return [each.samples_done if each else 0 for each in found]

    first = train(ranks=3, updates=0)
    logs = [tmp_path / "job" / f"server-{number}" for number in (0, 1)]
    eventually(lambda: all(any(log.stat().st_size for log in each.glob("updates-*.log")) for each in logs))
    first.send_signal(signal.SIGTERM)
    first.wait()
    before = samples()
    updates = max(before) // 8 + 50
    again = train(ranks=2, updates=updates)
    said = again.communicate()[1]
    assert again.returncode == 0, said
    # Where torchrun had to kill the ranks, the logs have more than the checkpoints said.
    assert max(samples()) >= updates * 8
    assert min(samples()) > max(before)


def test_processes_that_are_no_ranks_and_jobs_that_are_too_small_are_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        UsageError, match=r"^RANK: expected as torchrun and the placement service set it, got none$"
    ):
        job_role().__enter__()
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"^servers: expected at most the job's 2 ranks, got 3$"):
        job_role(servers=3).__enter__()
    with pytest.raises(UsageError, match=r"^servers: expected 1 or more, got 0$"):
        job_role(servers=0).__enter__()
