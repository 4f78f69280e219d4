"""The executor of malleable jobs with real processes on the loopback interface."""

import os
import signal
from contextlib import contextmanager

import pytest

from bench.live_jobs.async_executor import MalleableExecutor
from bench.workloads.launched_rank import store_directory
from bench.workloads.parameter_server.job import AsyncJob, ReplayWork
from bench.workloads.place import RankPlace
from mltcp.core.errors import MltcpError
from placement.model.throughput import WorkerTable, Workload
from placement.simulator.cluster_run import Start
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.traces.deadlines import DeadlineJob

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_root")]

LOOPBACK = RankPlace(None, "lo", "127.0.0.1")
GPUS = 3
WORK = ReplayWork(4000, 0.02, 0.001)


@pytest.fixture
def store_root(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.glob("mltcp-*")) == []


def rate_job(name, batches):
    workload = Workload(name, 1000, 1, 20_000_000, batches, 1)
    model = WorkerTable(((name, (1.0,) * GPUS),))
    return TimedJob.elastic(DeadlineJob(name, 0, workload, 10**18), ModelTimes(model, workload, GPUS), GPUS)


def description(job):
    return AsyncJob(job.name, WORK, GPUS, int(job.iterations), backend="gloo")


@contextmanager
def executor_for(jobs=1):
    with store_directory() as directory:
        executor = MalleableExecutor(description, [LOOPBACK] * jobs, lambda gpu: LOOPBACK, GPUS, directory)
        try:
            yield executor
            executor.end()
        finally:
            executor.kill()


def run_until(executor, condition):
    """Let time pass until then; no job may end before."""
    while not condition():
        assert executor.run(executor.now_ns + 10_000_000) == []


def start(executor, job, gpus, work=None):
    executor.start(Start(job, gpus, job.iterations if work is None else work, 1, 0))


def test_a_job_is_stopped_and_goes_on_with_its_updates_and_as_many_workers_as_it_has_gpus():
    job = rate_job("a", 150)
    with executor_for() as executor:
        start(executor, job, (0, 1))
        executor.decided(None)
        running = executor.jobs["a"]
        run_until(executor, lambda: len(running.updates) >= 30)
        done = executor.work_done("a")
        assert done == len(running.updates)
        # Without GPUs its workers leave after their present steps, which count.
        executor.stop("a")
        executor.decided(None)
        run_until(executor, lambda: not running.present)
        assert all(worker.left is not None for worker in running.workers)
        before = len(running.updates)
        assert done <= before <= done + 2 * 2
        start(executor, job, (1, 2), job.iterations - done)
        executor.decided(None)
        assert executor.work_done("a") == before - done
        (end,) = executor.run(None)
    assert (end.job, len(running.updates), len(running.workers)) == ("a", 150, 4)
    assert end.at_ns <= executor.now_ns
    assert [span.gpus for span in executor.spans] == [(0, 1), (1, 2)]
    assert executor.spans[1].end_ns == end.at_ns
    assert executor.deaths == []


def test_a_stop_and_a_start_in_one_decision_move_only_what_changes():
    job = rate_job("a", 120)
    with executor_for() as executor:
        start(executor, job, (0, 1))
        executor.decided(None)
        running = executor.jobs["a"]
        run_until(executor, lambda: len(running.updates) >= 10)
        executor.stop("a")
        start(executor, job, (1, 2))
        executor.decided(None)
        executor.run(None)
    first, second, third = running.workers
    assert [worker.told_s is not None for worker in running.workers] == [True, False, False]
    assert {update.worker for update in running.updates[-20:]} == {second.number, third.number}
    assert first.left.steps == sum(update.worker == first.number for update in running.updates)


def test_a_worker_that_dies_is_noted_and_replaced():
    job = rate_job("a", 150)
    with executor_for() as executor:
        start(executor, job, (0, 1))
        executor.decided(None)
        running = executor.jobs["a"]
        run_until(executor, lambda: all(worker.joined for worker in running.workers))
        os.kill(running.workers[0].rank.process.pid, signal.SIGKILL)
        run_until(executor, lambda: executor.deaths)
        executor.run(None)
    assert executor.deaths == ["a: worker 0: killed by SIGKILL"]
    assert len(running.workers) == 3
    assert len(running.updates) == 150


def test_more_jobs_than_servers_are_refused():
    with executor_for(jobs=1) as executor:
        start(executor, rate_job("a", 3), (0,))
        executor.decided(None)
        with pytest.raises(MltcpError, match="job b: expected at most 1 jobs, got more"):
            start(executor, rate_job("b", 3), (1,))
        executor.run(None)
