"""Trainings on hosts of their own: a scheduler stops them at a step boundary, and moves them to other hosts."""

import json

import pytest

from bench.cli.main import main
from bench.lab.lab import Lab
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from bench.live_jobs.elastic_executor import ElasticExecutor
from bench.workloads.elastic.training_job import FAULTS
from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from placement.engines.local import LocalEngine
from placement.model.throughput import RingAllReduce, Workload
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.timed_job import ModelTimes, TimedJob
from placement.traces.deadlines import DeadlineJob
from tests.warm.marks import trainings

pytestmark = [pytest.mark.lab, trainings]

SHAPE = TwoTier(racks=2, servers=2, slots=4)
ALONE, FIRST, SECOND = (0, 4), (8,), (15,)


class Sharing:
    """Gives one job two GPUs on two hosts; or one on another host beside a second job, which gets one."""

    name = "sharing"
    lease_ns = None

    def candidates(self, cluster, now_ns, jobs, most=1):
        places = [[], [ALONE], [FIRST, SECOND]][len(jobs)]
        return ({job.name: gpus for job, gpus in zip(jobs, places, strict=True)},)

    def next_ns(self, now_ns, jobs):
        return None


def job(name, arrival_s, epochs):
    workload = Workload(name, parameters=10_000, batch=4, compute_ns=40_000_000, samples=60, epochs=epochs)
    traced = DeadlineJob(name, arrival_s * 10**9, workload, deadline_ns=3600 * 10**9)
    return TimedJob.elastic(traced, ModelTimes(MODEL, workload, 4), 16)


MODEL = RingAllReduce(10_000_000_000, 6_000_000_000)


def test_a_scheduler_moves_jobs_between_hosts_with_other_numbers_of_ranks(tmp_path):
    # The second one takes 2.4 s and more, in which the first one has a step done on one rank, however late that starts.
    jobs = [job("long", 0, 28), job("short", 1, 4)]
    with (
        Lab(two_tier(SHAPE)) as lab,
        LocalEngine(engine_hosts(lab), tmp_path / "logs", network=LabNetwork(lab)) as engine,
    ):
        options = {"backend": "mltcp", "verify": True}
        executor = ElasticExecutor(engine, two_tier_cluster(SHAPE), tmp_path, options, {"MLTCP_CC": "none"})
        run = ClusterRun(jobs, two_tier_cluster(SHAPE), 1, SchedulingPolicy(Sharing()), executor)
        run.run()
    # How far the first job came with two ranks before the second arrived depends on the machine.
    assert [span.gpus for span in executor.spans if span.job == "long"] == [ALONE, FIRST, ALONE]
    assert [span.gpus for span in executor.spans if span.job == "short"] == [SECOND]
    assert [each.restarts for each in run.jobs] == [2, 0]
    for name, ranks, total in (("long", (1, 2), 28 * 60), ("short", (1,), 4 * 60)):
        header = progress_of(tmp_path / name)
        assert (header.samples_done, header.segments[-1].end) == (total, total)
        assert tuple(each.ranks for each in header.segments[-len(ranks) :]) == ranks
        assert json.loads((tmp_path / name / FAULTS).read_text()) == []
        assert executor.trainings[name].faults() == []


def test_the_command_runs_a_table_of_whole_jobs_and_goes_on_from_a_kept_run(tmp_path, capsys):
    table, folder = tmp_path / "jobs.csv", tmp_path / "runs"
    table.write_text("job_id,arrival_s,workload,alpha\na,0,ResNet-50,1\n")
    small = ["--speed", "8000", "--racks", "2", "--slots", "1", "--restart-cost", "5"]
    arguments = ["compare", "--trace", str(table), "--policies", "edf", *small, "-o", str(folder), "--json"]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first
    (policy,) = first["policies"]
    (job,) = policy["jobs"]
    assert (policy["policy"], policy["traces"][0]["jobs"], job["gpus"]) == ("edf", 1, [[0, 1]])
    assert job["run_s"] > 0.5
    assert job["predicted_run_s"] == pytest.approx(5.6, abs=0.2)
    assert {path.name for path in folder.iterdir()} >= {"jobs.json", "runs.jsonl", "gantt-edf.svg"}
