"""A training under real torchruns: moved between hosts and world sizes, stopped and killed, without losing a sample."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from bench.workloads.elastic import training_job
from bench.workloads.elastic.engine_job import EngineEvents, EngineTraining
from bench.workloads.elastic.training_job import FAULTS, JobOptions, read_losses
from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from collectives.elastic.journal import read_journal
from placement.engines.engine import HostShare, JobFailed, JobFinished, JobStopped
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from tests.eventually import eventually
from tests.warm.marks import trainings

pytestmark = [pytest.mark.slow, trainings]

HOSTS = (Host("a", "127.0.0.1", "lo", slots=2), Host("b", "127.0.0.1", "lo", slots=2))
PATIENCE_S = 120


@pytest.fixture
def engine(tmp_path):
    with LocalEngine(HOSTS, tmp_path / "logs") as made:
        yield made


def written(directory, event):
    return any(each["event"] == event for each in read_journal(directory))


def test_a_job_goes_on_with_other_ranks_on_other_hosts(engine, tmp_path):
    options = JobOptions(
        tmp_path / "job", samples=60, epochs=4, compute_s=0.01, checkpoint_every_s=1e-6, verify=True
    )
    job = EngineTraining(EngineEvents(engine), "j", options)
    job.start([HostShare("a", (0,))])
    job.await_steps(2)
    assert job.stop(PATIENCE_S) == JobStopped("j", orderly=True)
    first = progress_of(options.directory).samples_done
    job.start([HostShare("b", (1,)), HostShare("a", (1,))])
    job.await_steps(2)
    assert isinstance(job.kill_rank(1), JobFailed)
    assert job.faults() == []
    second = progress_of(options.directory).samples_done
    job.start([HostShare("b", (0,))])
    assert job.end() == JobFinished("j")
    header = progress_of(options.directory)
    assert [(each.begin, each.end, each.ranks) for each in header.segments] == [
        (0, first, 1),
        (first, second, 2),
        (second, 240, 1),
    ]
    assert json.loads((options.directory / FAULTS).read_text()) == []
    assert job.faults() == []
    positions = [done for done, _, _ in read_losses(options.directory)]
    assert positions == sorted(set(positions))


def test_ranks_whose_torchrun_was_killed_stop_at_a_step_and_free_the_job(tmp_path):
    options = JobOptions(tmp_path, samples=60, epochs=500, compute_s=0.01, verify=True)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        f"--log-dir={tmp_path / 'torchrun'}",
        "--no-python",
    ]
    command += [sys.executable, "-m", training_job.__name__, *options.arguments()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as torchrun:
        eventually(lambda: torchrun.poll() is not None or written(tmp_path, "first_step"))
        assert torchrun.poll() is None
        holder = int((tmp_path / "lock").read_text().split()[1])
        alive = os.pidfd_open(holder)
        torchrun.send_signal(signal.SIGKILL)
    try:
        eventually(lambda: written(tmp_path, "checkpoint"))
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(alive, signal.SIGKILL)
        os.close(alive)
    header = progress_of(tmp_path)
    assert read_journal(tmp_path)[-1]["why"] == "stop"
    assert [(each.begin, each.ranks) for each in header.segments] == [(0, 2)]
