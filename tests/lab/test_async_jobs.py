"""Jobs that change their workers while they run, on hosts of their own: the executor and the command."""

import json
import os
import signal

import pytest

from bench.cli.main import main
from bench.live_jobs.async_executor import MalleableExecutor
from bench.live_jobs.async_lab import LINK, ClusterShape, cluster_lab
from bench.workloads.launched_rank import store_directory
from bench.workloads.parameter_server.job import AsyncJob, ReplayWork
from placement.model.throughput import WorkerTable, Workload
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.traces.deadlines import DeadlineJob
from tests.lab.lab_commands import RunningCommand, left_in_labs
from tests.warm.marks import commands

pytestmark = [pytest.mark.lab, commands("async_jobs")]

SHAPE = ClusterShape(LINK, hosts=2, slots=2)
MODEL = WorkerTable((("long", (10.0, 20.0, 30.0, 40.0)), ("short", (10.0, 20.0, 30.0, 40.0))))
LONG, SHORT = 210, 5


class Sharing:
    """Gives a job that is alone all GPUs; of two, the first gets three and keeps none of the last one."""

    name = "sharing"
    lease_ns = None

    def candidates(self, cluster, now_ns, jobs, most=1):
        places = [[], [(0, 1, 2, 3)], [(0, 1, 2), (3,)]][len(jobs)]
        return ({job.name: gpus for job, gpus in zip(jobs, places, strict=True)},)

    def next_ns(self, now_ns, jobs):
        return None


def rate_job(name, arrival_s, batches):
    workload = Workload(name, 10_000, 1, 40_000_000, batches, 1)
    traced = DeadlineJob(name, round(arrival_s * 1e9), workload, 10**18)
    return TimedJob.elastic(traced, ModelTimes(MODEL, workload, 2), 4)


def test_only_the_worker_on_the_gpu_that_was_taken_leaves_and_a_new_one_joins_when_it_is_free():
    # The first one has more than a second of work left when the other one ends, which may be late.
    jobs = [rate_job("long", 0, LONG), rate_job("short", 1, SHORT)]
    with store_directory() as directory, cluster_lab(SHAPE, 2) as lab:
        executor = MalleableExecutor(
            lambda job: AsyncJob(job.name, ReplayWork(20_000, 0.05, 0.001), 4, int(job.iterations)),
            lab.server_places(),
            lab.worker_place,
            SHAPE.gpus,
            directory,
        )
        try:
            ClusterRun(jobs, SHAPE.cluster(), 1, SchedulingPolicy(Sharing(), most=1), executor).run()
            executor.end()
        finally:
            executor.kill()
    long, short = executor.jobs["long"], executor.jobs["short"]
    assert [span.gpus for span in executor.spans if span.job == "long"] == [
        (0, 1, 2, 3),
        (0, 1, 2),
        (0, 1, 2, 3),
    ]
    assert [len(long.updates), len(short.updates)] == [LONG, SHORT]
    assert [worker.told_s is not None for worker in long.workers] == [False, False, False, True, False]
    assert len(short.workers) == 1
    # The GPU was free before the other job's worker started on it.
    assert long.workers[3].gone_s <= short.workers[0].launched_s
    assert executor.deaths == []
    controls = {worker.joined.congestion_controls for job in (long, short) for worker in job.workers}
    assert controls == {frozenset({"cubic"})}


def test_the_command_goes_on_from_a_kept_run(tmp_path, capsys):
    table, folder = tmp_path / "jobs.csv", tmp_path / "runs"
    table.write_text("arrival_units,model,epochs\n0,NiN,100\n0.02,NiN,50\n")
    small = ["--trace", str(table), "--policies", "equi", "--hosts", "2", "--slots", "2", "--updates", "6"]
    arguments = ["async-jobs", *small, "-o", str(folder), "--json"]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first
    (policy,) = first["policies"]
    assert [job["batches"] for job in policy["jobs"]] == [20, 10]
    assert policy["joins"] >= 6
    assert policy["mean_response_s"] > 1
    # 0.24 s; in one of the four cycles the worker may be held up for a second.
    assert 0.2 < first["profile"]["service"]["NiN"]["worker_s"] < 0.55


def test_an_interrupt_leaves_nothing():
    # Two hosts, and the parameter servers of the four models that are profiled, have processes.
    running = RunningCommand(["async-jobs", "--hosts", "2", "--slots", "2", "--updates", "10000"], 6)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end() == (130, "mltcp-bench: interrupted; the lab has been removed")
    assert not left_in_labs(running.namespaces)
