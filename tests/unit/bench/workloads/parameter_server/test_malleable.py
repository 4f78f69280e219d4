"""A server whose workers join and leave, as real processes on the loopback interface."""

import itertools
import os
import signal

import pytest

from bench.workloads.job import RankError
from bench.workloads.parameter_server.job import AsyncJob, Checkpoints, ReplayWork, TrainWork
from bench.workloads.parameter_server.log import losses
from bench.workloads.parameter_server.malleable_job import malleable_job, run_to_end
from bench.workloads.place import RankPlace
from mltcp.core.errors import UsageError

LOOPBACK = RankPlace(None, "lo", "127.0.0.1")
SHORT = ReplayWork(4000, 0.01, 0.001)
SMALL = TrainWork(parameters=2000, learning_rate=0.1, worker_s=0.01)
ENDLESS = 1_000_000
UPDATES = 500
"""More than two workers apply while a third one joins on a busy machine."""


def job(work, updates, **more):
    return AsyncJob("job", work, 16, updates, **more)


def collect_until(running, condition):
    while not condition():
        assert running.ranks, "all processes have ended before"
        running.collect(60)


def after(running, updates):
    """Collect until so many more updates are there."""
    wanted = len(running.updates) + updates
    collect_until(running, lambda: len(running.updates) >= wanted)


def of(running, worker):
    return [update for update in running.updates if update.worker == worker.number]


def all_joined(running):
    return all(worker.joined for worker in running.present)


def held_by(pid):
    """The descriptors of a process and its threads, together."""
    return len(os.listdir(f"/proc/{pid}/fd")) + len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("backend", ["mltcp", "gloo"])
@pytest.mark.parametrize("work", [SHORT, SMALL], ids=["replay", "train"])
@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_workers_join_and_leave_while_others_work(work, backend):
    with malleable_job(job(work, UPDATES, backend=backend), LOOPBACK) as running:
        first, second = running.join(LOOPBACK), running.join(LOOPBACK)
        after(running, 20)
        third = running.join(LOOPBACK)
        collect_until(running, lambda: of(running, third) or running.done)
        running.leave(first)
        collect_until(running, lambda: first.gone_s is not None)
        assert not running.done
        left_at = len(running.updates)
        run_to_end(running)
    updates = running.updates
    # Gradients that arrive after the last update are not applied.
    assert [update.version for update in updates] == list(range(1, UPDATES + 1))
    assert {update.worker for update in updates[left_at:]} == {second.number, third.number}
    assert first.left.steps == len(of(running, first))
    assert (running.lost, [worker.death for worker in running.workers]) == ({}, [None] * 3)
    for worker in running.workers:
        own = of(running, worker)
        assert [update.step for update in own] == list(range(len(own)))
        for former, later in itertools.pairwise(own):
            assert later.staleness == later.version - former.version - 1
        assert worker.join_s > 0
    # A worker that joins has the weights as they are then.
    assert of(running, third)[0].version - 1 - of(running, third)[0].staleness >= 20
    if work is SMALL:
        start, end = losses(updates)
        assert end < 0.7 * start


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_the_server_stays_without_workers_and_keeps_its_weights():
    with malleable_job(job(SMALL, 60), LOOPBACK) as running:
        first = running.join(LOOPBACK)
        after(running, 30)
        running.leave(first)
        collect_until(running, lambda: not running.present)
        before = len(running.updates)
        assert not running.collect(0.3)
        second = running.join(LOOPBACK)
        run_to_end(running)
    assert [update.version for update in running.updates] == list(range(1, 61))
    assert of(running, second)[0].version == before + 1
    assert of(running, second)[0].staleness == 0
    # It goes on with the weights that had learned.
    assert of(running, second)[0].loss < running.updates[0].loss


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_a_worker_that_is_killed_is_noted_and_others_go_on():
    with malleable_job(job(SHORT, 120), LOOPBACK) as running:
        victim, other = running.join(LOOPBACK), running.join(LOOPBACK)
        collect_until(running, lambda: of(running, victim) and of(running, other))
        os.kill(victim.rank.process.pid, signal.SIGKILL)
        collect_until(running, lambda: victim.gone_s is not None and running.lost)
        before = len(running.updates)
        run_to_end(running)
    assert victim.death == "killed by SIGKILL"
    assert list(running.lost) == [victim.number]
    assert {update.worker for update in running.updates[before:]} == {other.number}
    assert [update.version for update in running.updates] == list(range(1, 121))


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_a_server_that_dies_ends_the_job():
    with malleable_job(job(SHORT, ENDLESS), LOOPBACK) as running:
        running.join(LOOPBACK)
        after(running, 3)
        os.kill(running.server_pid, signal.SIGKILL)
        with pytest.raises(RankError, match=r"job job, rank \d: (killed by SIGKILL|.*server 0 is gone)"):
            collect_until(running, lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_twenty_joins_leave_no_descriptors_and_no_threads():
    with malleable_job(job(SHORT, ENDLESS), LOOPBACK) as running:
        running.join(LOOPBACK)
        after(running, 5)
        leaver = running.join(LOOPBACK)
        collect_until(running, lambda: of(running, leaver))
        running.leave(leaver)
        collect_until(running, lambda: leaver.gone_s is not None)
        after(running, 5)
        before = held_by(running.server_pid)
        for _ in range(5):
            joining = [running.join(LOOPBACK) for _ in range(4)]
            collect_until(running, lambda: all(of(running, worker) for worker in joining))  # noqa: B023
            os.kill(joining[0].rank.process.pid, signal.SIGKILL)
            for worker in joining[1:]:
                running.leave(worker)
            collect_until(running, lambda: len(running.present) == 1)
            after(running, 5)
        assert len(running.workers) == 22
        for _ in range(
            100
        ):  # those of the last ones may still be ending, and `before` may have those of the first
            if held_by(running.server_pid) <= before:
                break
            after(running, 5)
        assert held_by(running.server_pid) <= before
        assert [file.name for file in running.directory.iterdir()] == ["job-worker-0"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"shares": (0.5, 0.5)}, "job job: shares: expected one server, got 2"),
        ({"checkpoints": Checkpoints("kept")}, "job job: checkpoints: expected none, .*, got kept"),
    ],
)
def test_what_it_cannot_run_is_refused(more, message):
    with pytest.raises(UsageError, match=message), malleable_job(job(SMALL, 5, **more), LOOPBACK):
        pass
