"""The placement service whose engine is a real Slurm."""

import sys
from pathlib import Path

import pytest

from bench.lab.slurm_cluster import SlurmCluster, missing
from bench.soak.slurm_trial import TrialPlan, run_trial
from placement.client.client import Client, ServiceError
from placement.engines import slurm as slurm_files
from placement.engines.slurm.engine import SlurmEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from tests.slurm_environment import enter
from tests.unit.placement.service.serving import eventually, profile, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}"),
]

GOES_ON = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(f"{sys.argv[1]}/on-{os.environ['SLURMD_NODENAME']}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/enough"):
    signal.sigtimedwait([], 0.1)
"""


@pytest.fixture(scope="module")
def slurm():
    with SlurmCluster({"n1": 2, "n2": 2}) as cluster:
        yield cluster


@pytest.fixture
def around(slurm, monkeypatch):
    return enter(slurm, monkeypatch)


def service(directory, *rules):
    servers = tuple(pb.Server(name=name, gpus=2, nic_bps=10**10, switch="leaf") for name in ("n1", "n2"))
    engine = SlurmEngine(directory / "logs", look_s=0.1)
    return serving(directory, servers=servers, engine=engine, rules=ServiceRules(*rules))


def going_on(directory, **fields):
    fields = {"id": "a", "gpus": 2, "iterations": 10, **fields}
    return pb.Job(command=[sys.executable, "-c", GOES_ON, str(directory)], **fields)


def where_it_runs(directory):
    """The node that a job of `going_on` was given: either one, if the other had not yet reported to slurmctld."""
    return eventually(
        lambda: next((each for each in ("n1", "n2") if (directory / f"on-{each}").exists()), None)
    )


def test_a_job_leaves_a_drained_node_and_goes_on_elsewhere(around, tmp_path):
    with service(tmp_path) as address, Client(address) as client:
        eventually(lambda: all(each.state == pb.IN_USE for each in client.status().servers))
        client.submit(going_on(tmp_path, elastic=True))
        first = where_it_runs(tmp_path)
        (second,) = {"n1", "n2"} - {first}
        eventually(lambda: f": running, GPUs {first}: 0-1" in client.job("a").seen)
        assert "Slurm job " in client.explain("a").summary
        around.command("scontrol", "update", f"NodeName={first}", "State=DRAIN", "Reason=new disk")
        try:
            eventually((tmp_path / f"on-{second}").exists)
            status = client.job("a")
            assert (status.restarts, [each.server for each in status.places]) == (1, [second])
            (server,) = [each for each in client.status().servers if each.server.name == first]
            assert (server.state, server.reason) == (pb.UNHEALTHY, "engine: drained in Slurm: new disk")
        finally:
            around.command("scontrol", "update", f"NodeName={first}", "State=RESUME")
        eventually(lambda: all(each.state == pb.IN_USE for each in client.status().servers))
        (tmp_path / "enough").touch()
        assert eventually(lambda: (job := client.job("a")).state == pb.ENDED and job).reason == "finished"


def test_a_scheduler_of_whole_jobs_moves_a_job_to_make_room_for_another(around, tmp_path):
    def gpus(client, job):
        return sorted((place.server, slot) for place in client.job(job).places for slot in place.slots)

    with service(tmp_path, "elastic-edf") as address, Client(address) as client:
        eventually(lambda: all(each.state == pb.IN_USE for each in client.status().servers))
        fields = {"gpus": 1, "iterations": 10**6, "profile": profile((1000, 0)), "elastic": True}
        client.submit(going_on(tmp_path, **fields))
        eventually(lambda: all((tmp_path / f"on-{node}").exists() for node in ("n1", "n2")))
        everything = gpus(client, "a")
        assert len(everything) == 4
        client.submit(going_on(tmp_path, **fields, **{"id": "b"}))
        eventually(lambda: ": running" in client.job("a").seen and ": running" in client.job("b").seen)
        assert client.job("a").restarts == 1
        assert sorted(gpus(client, "a") + gpus(client, "b")) == everything
        (tmp_path / "enough").touch()
        for job in "ab":
            eventually(lambda job=job: client.job(job).state == pb.ENDED)


def test_jobs_go_on_without_the_service_and_the_next_one_finds_them(around, tmp_path):
    with service(tmp_path) as address, Client(address) as client:
        client.submit(going_on(tmp_path, elastic=True))
        where_it_runs(tmp_path)
    assert around.command("squeue", "--noheader", "--format=%T").strip() == "RUNNING"
    with service(tmp_path) as address, Client(address) as client:
        assert client.job("a").state == pb.PLACED
        (tmp_path / "enough").touch()
        done = eventually(lambda: (job := client.job("a")).state == pb.ENDED and job)
        assert (done.reason, done.restarts) == ("finished", 0)


@pytest.fixture(scope="module")
def with_lua():
    lua = Path(slurm_files.__file__).with_name("site") / "job_submit.lua"
    files, settings = {"job_submit.lua": lua.read_text()}, "JobSubmitPlugins=lua\n"
    with SlurmCluster({"n1": 4, "n2": 4}, files=files, settings=settings) as cluster:
        yield cluster


def test_jobs_that_users_submit_to_slurm_are_placed(with_lua, monkeypatch, tmp_path):
    enter(with_lua, monkeypatch)

    def submit(*options):
        wrap = f"--wrap=echo $SLURM_JOB_NODELIST > {tmp_path}/$SLURM_JOB_ID"
        return with_lua.command("sbatch", "--parsable", "--output=/dev/null", *options, wrap).strip()

    servers = tuple(pb.Server(name=name, gpus=4, nic_bps=10**10, switch="leaf") for name in ("n1", "n2"))
    engine = SlurmEngine(tmp_path / "logs", look_s=0.1, users_jobs=True)
    before = [submit("--nodes=2", "--gres=gpu:2"), submit("--gpus=4")]
    left_alone = [
        submit(),
        submit("--gres=gpu:1", "--nodelist=n2"),
        submit("--gres=gpu:1", "--array=7"),
        submit("--gres=gpu:1", "--output=/dev/null", ":", "--gres=gpu:2"),
    ]
    for number in left_alone:
        eventually((tmp_path / number).exists)
    states = with_lua.command("squeue", "--noheader", "--format=%i %r").split("\n")
    assert all(any(line.startswith(f"{number} JobHeld") for line in states) for number in before)
    with serving(tmp_path, servers=servers, engine=engine) as address, Client(address) as client:
        done = [
            eventually(
                lambda n=number: (job := known(client, f"slurm-{n}")) and job.state == pb.ENDED and job
            )
            for number in before
        ]
        assert [each.reason for each in done] == ["finished"] * 2
        assert [[len(place.slots) for place in each.places] for each in done] in ([[], []], [[2, 2], [4]])
        assert (tmp_path / before[0]).read_text().strip() == "n[1-2]"
        assert (tmp_path / before[1]).read_text().strip() in ("n1", "n2")
        later = submit("--gpus=4")
        assert eventually(lambda: (job := known(client, f"slurm-{later}")) and job.state == pb.ENDED and job)
        assert all(each.gpus_free == 4 for each in client.status().servers)
        with pytest.raises(ServiceError, match=r"job\.held: expected none"):
            client.submit(pb.Job(id="x", gpus=1, iterations=1, held="1"))


def known(client, job_id):
    return next((job for job in client.status().jobs if job.id == job_id), None)


def test_no_job_is_lost_or_run_twice_when_everything_is_killed():
    plan = TrialPlan(4, 2, 2, kills=1, restarts=1, accounting=False, longest_s=1.0)
    result = run_trial(plan, lambda _: None)
    assert result.breaches == ()
    assert (result.finished, set(result.kills.values()), result.restarts, result.agents) == (4, {1}, 1, 1)
