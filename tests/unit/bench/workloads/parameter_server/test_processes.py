"""Asynchronous jobs as real processes on the loopback interface: order, staleness, learning, deaths, checkpoints."""

import itertools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.workloads.job import RankError
from bench.workloads.parameter_server.job import AsyncJob, Checkpoints, ReplayWork, TrainWork
from bench.workloads.parameter_server.launch import PlacedAsyncJob, launched_async, run_async_job
from bench.workloads.parameter_server.log import losses, mean_staleness, steady
from bench.workloads.parameter_server.work import FlatModel
from bench.workloads.place import RankPlace
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory
from mltcp.core.address import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_root")]

LOOPBACK = RankPlace(None, "lo", "127.0.0.1")
SHORT = ReplayWork(4000, 0.002, 0.001)
SMALL = TrainWork(parameters=2000, learning_rate=0.1)
ENDLESS = 1_000_000


def placed(work, workers, updates, **more):
    job = AsyncJob("job", work, workers, updates, **more)
    return PlacedAsyncJob(job, (LOOPBACK,) * job.ranks)


def test_gradients_are_applied_one_after_the_other_in_the_order_of_their_arrival():
    result = run_async_job(placed(SHORT, 3, 60))
    updates = result.updates
    # A worker that waits for its weights when the last update is done has them applied, too.
    assert 60 <= len(updates) <= 60 + 2
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    for former, later in itertools.pairwise(updates):
        assert former.applied_s <= later.applying_s
        assert later.version - former.version == 1
    assert all(u.began_s <= u.sending_s <= u.received_s <= u.applying_s for u in updates)
    assert all(u.applied_s - u.applying_s >= 0.95 * SHORT.server_s for u in updates)
    for worker in range(3):
        own = [update for update in updates if update.worker == worker]
        assert [update.step for update in own] == list(range(len(own)))
        for former, later in itertools.pairwise(own):
            assert later.staleness == later.version - former.version - 1
    # Others go on while the machine holds a worker up: the mean is two but for what that makes of the two ends.
    own = [[update for update in updates if update.worker == worker] for worker in range(3)]
    kept = {update.version for update in steady(updates)}
    passed = [
        later.version - former.version - 1
        for each in own
        for former, later in itertools.pairwise(each)
        if later.version in kept
    ]
    assert mean_staleness(updates) == pytest.approx(sum(passed) / len(passed))
    assert result.lost == {}
    assert sum(worker.steps for worker in result.workers) == len(updates)


def test_one_worker_trains_exactly_as_plain_sgd():
    result = run_async_job(placed(SMALL, 1, 20))
    model = FlatModel(SMALL)
    weights = torch.nn.Parameter(model.weights)
    optimizer = torch.optim.SGD([weights], lr=SMALL.learning_rate)
    expected = []
    for step in range(20):
        expected.append(model.compute(0, step))
        weights.grad = model.gradients
        optimizer.step()
    assert [update.loss for update in result.updates] == expected


def test_two_servers_with_unequal_shares_learn_together():
    result = run_async_job(placed(SMALL, 2, 120, shares=(0.25, 0.75), backend="gloo"))
    first, last = losses(result.updates)
    assert last < 0.5 * first
    counts = [len(server.updates) for server in result.servers]
    assert counts[0] == counts[1] >= 120


def test_a_worker_that_dies_leaves_the_others_training():
    job = placed(SMALL, 3, 150)
    with launched_async(job) as running:
        running.start([0.0] * 3)
        victim = running.pids[job.job.servers + 1]

        def on_update(update):
            if update.version == 20:
                os.kill(victim, signal.SIGKILL)

        result = running.result(on_update)
    assert result.lost == {1: "killed by SIGKILL"}
    assert list(result.servers[0].lost) == [1]
    assert len(result.updates) >= 150
    last = max(at for at, update in enumerate(result.updates) if update.worker == 1)
    assert {update.worker for update in result.updates[last + 1 :]} == {0, 2}


def test_all_workers_dead_end_the_job():
    job = placed(SHORT, 1, ENDLESS)
    with launched_async(job) as running:
        running.start([0.0])

        def on_update(update):
            if update.version == 5:
                ends = [os.pidfd_open(pid) for pid in running.pids]
                os.kill(running.pids[1], signal.SIGKILL)
                # So that the launcher hears of the worker's death and of the server's error at once.
                for end in ends:
                    select.select([end], [], [])
                    os.close(end)

        with pytest.raises(RankError, match=r"rank 0: .*all 1 workers have died after"):
            running.result(on_update)


def test_a_server_that_dies_ends_the_job_with_a_checkpoint_from_which_it_goes_on(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", every_s=1000)
    job = placed(SMALL, 2, ENDLESS, checkpoints=checkpoints)
    with launched_async(job) as running:
        running.start([0.0] * 2)

        def on_update(update):
            if update.version == 30:
                os.kill(running.pids[0], signal.SIGKILL)

        with pytest.raises(RankError, match=r"rank 0: killed by SIGKILL"):
            running.result(on_update)
    again = run_async_job(placed(SMALL, 2, 20, checkpoints=checkpoints))
    # Every update that was reported is in the log, though no checkpoint was due.
    assert again.updates[0].version > 30
    # The weights are those that had learned, not new ones.
    fresh = FlatModel(SMALL).compute(0, 0)
    assert again.updates[0].loss < fresh
    _, header = CheckpointDirectory(checkpoints.of_server(0)).newest()
    assert header.samples_done == again.updates[-1].version * SMALL.batch


def test_a_job_in_the_open_with_a_role_a_rank(tmp_path):
    """Two ranks started by hand, as torchrun starts them; the worker has the lower rank."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
        "MLTCP_CC": "none",
    }
    command = [sys.executable, "-m", "bench.workloads.parameter_server.run", "--updates", "12", "--json"]
    log = tmp_path / "updates.jsonl"
    ranks = [
        subprocess.Popen(
            [*command, "--parameters", "2000", "--log", str(log)],
            env={**environment, "RANK": str(rank), "ROLE_NAME": role},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, role in enumerate(["worker", "server"])
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs[0] == ""
    assert '"updates": 12' in outputs[1]
    assert '"lost": {}' in outputs[1]
    assert len(Path(log).read_text().splitlines()) == 12
