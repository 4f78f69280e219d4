"""What job_submit.lua holds and refuses, asked of a real slurmctld whose nodes do not run."""

import subprocess
from pathlib import Path

import pytest

from bench.lab.slurm_cluster import CONTROLLER, SlurmCluster, missing
from placement.engines import slurm as slurm_files

LUA = Path(slurm_files.__file__).with_name("site") / "job_submit.lua"
NOBODY = 65534
PROGRAMS = (*CONTROLLER, "sbatch", "squeue")
SETTINGS = "JobSubmitPlugins=lua\nPartitionName=other Nodes=ALL\nPartitionName=more Nodes=ALL\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing(PROGRAMS)), reason="slurmctld, sbatch or munged is missing"),
]


@pytest.fixture(scope="module")
def slurm():
    lua = LUA.read_text().replace("{ all = true }", "{ all = true, more = true }")
    with SlurmCluster(
        {"n1": 4, "n2": 4}, running=False, files={"job_submit.lua": lua}, settings=SETTINGS
    ) as cluster:
        cluster.directory.chmod(0o755)  # users' commands read slurm.conf
        yield cluster


def run(cluster, *command, user=NOBODY):
    return subprocess.run(
        command, env=cluster.environment, cwd="/tmp", user=user, group=user, capture_output=True, text=True
    )


def submitted(cluster, *options):
    """A user's job, and whether it is held to be placed."""
    command = ("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=true")
    number = run(cluster, *command).stdout.strip()
    return number, held(cluster, number)


def held(cluster, number):
    shown = run(cluster, "scontrol", "--oneliner", "show", "job", number, user=0).stdout
    return " Priority=0 " in shown and " AdminComment=mltcp " in shown


@pytest.mark.parametrize(
    "options",
    [
        ["--gres=gpu:1"],
        ["--gres=gpu"],
        ["--gpus=2", "--partition=all,more"],
        ["--gpus-per-task=1", "--ntasks=2"],
        ["--gpus-per-socket=1", "--sockets-per-node=1"],
        ["--gres=gpu:1", "--partition=all,all"],
        ["--gres=gpu:1", "--comment=mltcp:12345678:1-0"],
        ["--gres=gpu:1", "--exclude=n1"],
        ["--gres=gpu:1", "--begin=now+1hour", "--dependency=singleton"],
    ],
)
def test_jobs_that_want_gpus_are_held(slurm, options):
    assert submitted(slurm, *options)[1]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--gres=gpu:0"],
        ["--gres=none"],
        ["--gpus=1", "--partition=all,other"],
        ["--gpus=1", "--partition=other"],
        ["--gpus=1", "--hold"],
        ["--gres=gpu:1", "--nodelist=n1"],
    ],
)
def test_other_jobs_are_left_alone(slurm, options):
    assert not submitted(slurm, *options)[1]


@pytest.mark.parametrize(
    "change",
    [
        ["release", "{}"],
        ["hold", "{}"],
        ["update", "JobId={}", "Priority=9"],
        ["update", "JobId={}", "ReqNodeList=n1"],
    ],
)
def test_a_user_does_not_place_a_held_job(slurm, change):
    number, _ = submitted(slurm, "--gres=gpu:1")
    refused = run(slurm, "scontrol", *(each.format(number) for each in change))
    assert "denied" in refused.stderr
    assert held(slurm, number)


def test_a_user_does_not_start_a_job_whose_dependency_is_watched(slurm):
    number, _ = submitted(slurm, "--gres=gpu:1", "--dependency=singleton")
    watch = ("StartTime=now+3650days", "AdminComment=mltcp:waits now")
    assert run(slurm, "scontrol", "update", f"JobId={number}", *watch, user=0).returncode == 0
    assert run(slurm, "scontrol", "release", number, user=0).returncode == 0
    assert "denied" in run(slurm, "scontrol", "update", f"JobId={number}", "StartTime=now").stderr
    assert "denied" in run(slurm, "scontrol", "hold", number).stderr
    assert run(slurm, "scontrol", "update", f"JobId={number}", "Dependency=").returncode == 0


def test_a_user_changes_a_held_job_but_not_a_placed_one(slurm):
    number, _ = submitted(slurm, "--gres=gpu:1")
    fewer = ("scontrol", "update", f"JobId={number}", "NumNodes=2")
    assert run(slurm, *fewer).returncode == 0
    place = ("scontrol", "update", f"JobId={number}", "AdminComment=mltcp:placed", "ReqNodeList=n1,n2")
    assert run(slurm, *place, user=0).returncode == 0
    assert "denied" in run(slurm, *fewer).stderr
    for change in ("ReqNodeList=n2", "ExcNodeList=n1", "Partition=other", "Gres=gpu:2"):
        assert "denied" in run(slurm, "scontrol", "update", f"JobId={number}", change).stderr
    assert run(slurm, "scontrol", "update", f"JobId={number}", "TimeLimit=5", "JobName=x").returncode == 0
    for order in ("hold", "release"):  # his own
        assert run(slurm, "scontrol", order, number).returncode == 0
