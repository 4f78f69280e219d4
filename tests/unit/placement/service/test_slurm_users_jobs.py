"""Jobs that users submit to a real Slurm: placed as Slurm would let them run, or left to it."""

from pathlib import Path

import pytest

from bench.lab.slurm_cluster import SlurmCluster, missing
from placement.client.client import Client
from placement.engines import slurm as slurm_files
from placement.engines.slurm import engine as slurm_engine
from placement.engines.slurm import following
from placement.engines.slurm.engine import SlurmEngine
from placement.service.protocol import placement_pb2 as pb
from tests.slurm_environment import enter
from tests.unit.placement.service.serving import eventually, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}"),
]

SETTINGS = "JobSubmitPlugins=lua\nPartitionName=small Nodes=n2\nPartitionName=other Nodes=ALL\n"


@pytest.fixture(scope="module")
def slurm():
    """A cluster whose second node has GPUs of a type."""
    lua = (Path(slurm_files.__file__).with_name("site") / "job_submit.lua").read_text()
    files = {"job_submit.lua": lua.replace("{ all = true }", "{ all = true, small = true }")}
    nodes, types = {"n1": 4, "n2": 4}, {"n2": "2080ti"}
    with SlurmCluster(nodes, gpu_types=types, files=files, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def around(slurm, monkeypatch):
    enter(slurm, monkeypatch)
    monkeypatch.setattr(slurm_engine, "_NODES_S", 0.2)
    yield slurm
    slurm.command("scancel", "--full", "--user=root", "--signal=KILL")
    slurm.command("scancel", "--user=root")
    eventually(lambda: not slurm.command("squeue", "--noheader"))


@pytest.fixture
def client(around, tmp_path):
    servers = tuple(pb.Server(name=name, gpus=4, nic_bps=10**10, switch="leaf") for name in ("n1", "n2"))
    engine = SlurmEngine(tmp_path / "logs", look_s=0.1, users_jobs=True)
    with serving(tmp_path, servers=servers, engine=engine) as address, Client(address) as made:
        yield made


def submit(cluster, *options, run="true"):
    command = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, f"--wrap={run}")
    return cluster.command(*command).strip()


def shown(cluster, number, field):
    """A field of a job without a text of its user's."""
    text = cluster.command("scontrol", "show", "job", number)
    found = (line.partition("=")[2].strip() for line in text.split("\n") if line.strip().startswith(field))
    return next(found, "")


def ended(client, number):
    def found():
        jobs = {job.id: job for job in client.status().jobs}
        job = jobs.get(f"slurm-{number}")
        return job if job is not None and job.state in (pb.ENDED, pb.FAILED) else None

    return eventually(found)


def free(client):
    return [each.gpus_free for each in client.status().servers]


def test_jobs_run_where_slurm_would_let_them(around, client):
    asked = [
        ("--gres=gpu:2080ti:2",),
        ("--gpus=2080ti:1",),
        ("--gres=gpu:4", "--exclude=n1"),
        ("--gres=gpu:4", "--partition=small"),
        ("--gres=gpu:1", "--partition=all,small"),
    ]
    numbers = [submit(around, *options) for options in asked]
    assert [ended(client, each).reason for each in numbers] == ["finished"] * len(numbers)
    assert {shown(around, each, "NodeList") for each in numbers} == {"n2"}


def test_what_cannot_be_placed_is_left_to_slurm_which_says_why(around, client):
    left = {
        submit(around, "--gpus=6"): "how many of 6 GPUs are on each of 2 nodes",
        submit(around, "--gpus=2080ti:6"): "how many of 6 GPUs",
    }
    for number, why in left.items():
        comment = eventually(
            lambda n=number: (found := shown(around, n, "AdminComment")) != "mltcp" and found
        )
        assert comment.startswith("mltcp: left to Slurm: ")
        assert why in comment
    eventually(lambda: shown(around, min(left, key=int), "JobState").startswith("COMPLETED"))


def test_a_job_takes_nothing_before_it_may_run(around, client):
    first = submit(around, run="sleep 60")
    after = submit(around, f"--dependency=afterany:{first}", "--gres=gpu:4", "--nodes=2")
    later = submit(around, "--begin=now+1hour", "--gres=gpu:4", "--nodes=2")
    eventually(lambda: "Reason=Dependency" in around.command("scontrol", "show", "job", after))
    now = submit(around, "--gres=gpu:4", "--nodes=2")
    assert ended(client, now).reason == "finished"
    assert {job.id for job in client.status().jobs} == {f"slurm-{now}"}
    around.command("scancel", first)
    assert ended(client, after).reason == "finished"
    around.command("scontrol", "update", f"JobId={later}", "StartTime=now")
    assert ended(client, later).reason == "finished"


def test_gpus_of_jobs_that_are_not_placed_are_taken(around, client):
    others = submit(around, "--partition=other", "--nodelist=n1", "--gres=gpu:3", run="sleep 60")
    eventually(lambda: free(client) == [1, 4])
    two = submit(around, "--gres=gpu:2")
    assert ended(client, two).reason == "finished"
    assert shown(around, two, "NodeList") == "n2"
    around.command("scancel", others)
    eventually(lambda: free(client) == [4, 4])


def test_a_job_that_slurm_cannot_start_where_it_was_placed_is_slurms_again(around, client, monkeypatch):
    monkeypatch.setattr(following, "TAKE_BACK_S", 0.5)
    submit(around, "--partition=other", "--nodelist=n1", "--cpus-per-task=64", run="sleep 60")
    waits = submit(around, "--gres=gpu:4", "--exclude=n2")
    eventually(lambda: "Reason=Resources" in around.command("scontrol", "show", "job", waits))
    eventually(lambda: free(client) == [0, 4])
    around.command("scontrol", "update", f"JobId={waits}", "ExcNodeList=n1")
    assert "Slurm does not start it where it was placed (BadConstraints)" in ended(client, waits).reason
    eventually(lambda: shown(around, waits, "JobState").startswith("COMPLETED"))
    assert shown(around, waits, "NodeList") == "n2"
    eventually(lambda: free(client) == [4, 4])  # the engine looks at Slurm again and again


def test_a_job_is_placed_with_what_it_asks_for_then_and_again_if_it_is_requeued(around, client):
    filler = submit(around, "--nodes=2", "--gres=gpu:4", run="sleep 60")
    eventually(lambda: free(client) == [0, 0])
    fewer = submit(around, "--nodes=2", "--gres=gpu:3", run="sleep 60")
    around.command("scontrol", "update", f"JobId={fewer}", "NumNodes=1")
    around.command("scancel", filler)
    eventually(lambda: sorted(free(client)) == [1, 4])
    eventually(lambda: shown(around, fewer, "JobState").startswith("RUNNING"))
    around.command("scontrol", "requeue", fewer)
    eventually(lambda: shown(around, fewer, "AdminComment") == "mltcp")
    eventually(lambda: free(client) == [4, 4])  # Slurm lets it begin two minutes later
    around.command("scontrol", "update", f"JobId={fewer}", "StartTime=now")
    eventually(lambda: shown(around, fewer, "JobState").startswith("RUNNING"))
    assert shown(around, fewer, "AdminComment") == "mltcp:placed"


def test_a_job_that_was_held_again_and_kept_its_mark_is_placed(around, tmp_path):
    number = submit(around, "--gres=gpu:1")
    around.command("scontrol", "update", f"JobId={number}", "ReqNodeList=n1", "AdminComment=mltcp:placed")
    servers = tuple(pb.Server(name=name, gpus=4, nic_bps=10**10, switch="leaf") for name in ("n1", "n2"))
    engine = SlurmEngine(tmp_path / "logs", look_s=0.1, users_jobs=True)
    with serving(tmp_path, servers=servers, engine=engine) as address, Client(address) as client:
        assert ended(client, number).reason == "finished"


def test_a_job_whose_release_slurm_has_forgotten_is_placed_anew(around, client, monkeypatch):
    monkeypatch.setattr(following, "TAKE_BACK_S", 0.5)
    others = submit(around, "--partition=other", "--nodelist=n1", "--cpus-per-task=64", run="sleep 60")
    waits = submit(around, "--gres=gpu:4", "--exclude=n2")
    eventually(lambda: shown(around, waits, "AdminComment") == "mltcp:placed")
    # What a slurmctld has that was killed before it wrote the release down.
    around.command("scontrol", "hold", waits)
    around.command("scontrol", "update", f"JobId={waits}", "ReqNodeList=", "AdminComment=mltcp")
    around.command("scancel", others)
    eventually(lambda: shown(around, waits, "JobState").startswith("COMPLETED"))
    assert ended(client, waits).reason == "finished"
