"""What a soak says of users' jobs in Slurm, by their own records."""

import os
import random
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from bench.lab.slurm_cluster import SlurmCluster, missing
from bench.soak import slurm_checks
from bench.soak.records import CANCELLED, SLURM_JOBS, Records
from bench.soak.slurm_guests import SCRIPT, hostile_text
from bench.soak.slurm_site import SlurmSite
from bench.soak.watch import until

NUMBER = "7"


def run(place, key, seconds="0"):
    """A job of a user on node n1 with GPU 2, as Slurm would run it."""
    environment = {
        "PATH": os.environ["PATH"],
        "CUDA_VISIBLE_DEVICES": "2",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": NUMBER,
    }
    (place / "0").mkdir(exist_ok=True)
    command = ["bash", "-c", SCRIPT, "job", str(place), str(place / "0" / key), seconds]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def breaches(place, state, forgot_s=(), submitted_s=0.0, cancelled=False):
    """What is said of one job of user 0 that Slurm has in this state."""
    with Records(place) as records:
        records.note(SLURM_JOBS, ["u1", 0, NUMBER, submitted_s])
        if cancelled:
            records.note(CANCELLED, "u1")
    site = SimpleNamespace(
        place=SimpleNamespace(users=place),
        cluster=SimpleNamespace(command=lambda *_: f"{NUMBER}|{state}|None\n"),
        forgot_s=list(forgot_s),
    )
    return list(slurm_checks._of_users_jobs(site, place))


def test_a_job_that_ran_to_its_end_is_well(tmp_path):
    assert run(tmp_path, "u1").wait() == 0
    assert breaches(tmp_path, "COMPLETED") == []


def test_a_job_that_somebody_ended_is_told(tmp_path):
    assert breaches(tmp_path, "CANCELLED") == ["job 7 of user 0 (u1) did not run to its end: CANCELLED"]


def test_a_job_that_slurm_says_was_ended_is_told(tmp_path):
    run(tmp_path, "u1").wait()
    assert breaches(tmp_path, "CANCELLED") == ["job 7 of user 0 (u1) ran to its end, and is CANCELLED"]


def test_a_job_that_its_user_ended_is_not_told(tmp_path):
    assert breaches(tmp_path, "CANCELLED", cancelled=True) == []


def test_only_what_slurmctld_can_have_forgotten_is_not_told(tmp_path):
    assert breaches(tmp_path, "CANCELLED", forgot_s=[1005.0], submitted_s=1000.0) == []
    (tmp_path / SLURM_JOBS).unlink()
    assert len(breaches(tmp_path, "CANCELLED", forgot_s=[1005.0, 1100.0], submitted_s=1050.0)) == 1


def test_a_gpu_that_two_jobs_have_is_told(tmp_path):
    (tmp_path / "n1.2").touch()
    first = run(tmp_path, "u0", "60")
    try:
        while not (tmp_path / "n1.2").read_text():
            assert first.poll() is None
            time.sleep(0.01)
        run(tmp_path, "u1").wait()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    (breach,) = breaches(tmp_path, "COMPLETED")
    assert breach.startswith(f"GPU n1.2 was given to u1 while {first.pid} {NUMBER} ")


def test_forged_lines_name_jobs_of_others():
    seen = ["4|thesis|mine", "5|mltcp.a|mltcp:0123abcd:9"]
    texts = [hostile_text(random.Random(seed), seen) for seed in range(300)]
    assert any(text.startswith("x\n4|") and "|thesis|mltcp:0123abcd:9" in text for text in texts)
    assert all("\0" not in text for text in texts)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}")
def test_a_job_that_slurmctld_never_launched_ends_when_the_nodes_are_restarted(tmp_path):
    with SlurmCluster({"n1": 1}, settings="BatchStartTimeout=1\n") as cluster:
        site = SlurmSite(cluster, None, None, None)
        cluster.kill("slurmd.n1")
        script = ("--no-requeue", "--output=/dev/null", f"--wrap=touch {tmp_path}/ran")
        number = cluster.command("sbatch", "--parsable", "--chdir=/", *script).strip()

        def state():
            return slurm_checks._states(site).get(number)

        assert until(lambda: state() == "RUNNING", 60)  # its launch waits for the node
        cluster.kill("slurmctld", signal.SIGTERM)  # it writes down that the job runs
        cluster.start("slurmctld")
        cluster.start("slurmd.n1")
        assert until(lambda: not slurm_checks._silent(site), 60)

        def has_ended():
            slurm_checks.restart_nodes(site)
            return until(lambda: state() == "NODE_FAIL", 2)

        assert until(has_ended, 120)
        assert not (tmp_path / "ran").exists()
