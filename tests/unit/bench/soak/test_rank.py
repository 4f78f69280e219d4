"""The ranks of a soak's jobs notice a GPU that was given twice."""

import os
import signal
import subprocess
import sys

from bench.soak.host_state import processes_with
from bench.soak.rank import ended_ranks
from bench.soak.records import BREACHES, TWICE, read_records

COMMAND = [sys.executable, "-m", "bench.soak.rank"]


def rank(tmp_path, job, seconds, status="0", further=(), **variables):
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "s0-0,s0-1",
        "LOCAL_RANK": "1",
        "MLTCP_JOB": job,
        "MLTCP_SOAK": str(tmp_path),
        **variables,
    }
    arguments = [str(tmp_path), str(tmp_path), str(seconds), status, *further]
    return subprocess.Popen([*COMMAND, *arguments], env=environment)


def test_a_rank_alone_ends_as_it_was_told(tmp_path):
    assert rank(tmp_path, "a", 0, "3").wait() == 3
    assert rank(tmp_path, "b", 0).wait() == 0
    assert list(read_records(tmp_path, BREACHES)) == []


def test_a_gpu_that_is_held_is_told(tmp_path):
    first = rank(tmp_path, "a", 60)
    try:
        while not (tmp_path / "s0-1").exists() or "a" not in (tmp_path / "s0-1").read_text():
            assert first.poll() is None
        assert rank(tmp_path, "b", 0).wait() == 1
    finally:
        first.kill()
        first.wait()
    ((gpu, job, holder, _),) = read_records(tmp_path, TWICE)
    assert (gpu, job, holder.split()[:2]) == ("s0-1", "b", [str(first.pid), "a"])


def test_a_lock_that_a_rank_left_to_a_child_is_told(tmp_path):
    first = rank(tmp_path, "a", 0, further=["--leaves-child"])
    assert first.wait() == 0
    try:
        assert rank(tmp_path, "b", 0).wait() == 1
    finally:
        (child,) = processes_with(f"MLTCP_SOAK={tmp_path}".encode())
        os.kill(child, signal.SIGKILL)


def test_a_command_that_was_altered_is_told(tmp_path):
    text = "pa$$word"
    rank(tmp_path, "a", 0, further=[f"--text={text}", f"--hex={text.encode().hex()}"]).wait()
    assert list(read_records(tmp_path, BREACHES)) == []
    rank(tmp_path, "a", 0, further=["--text=pa$word", f"--hex={text.encode().hex()}"]).wait()
    (breach,) = read_records(tmp_path, BREACHES)
    assert "'pa$word'" in breach


def test_a_job_in_slurm_that_runs_again_after_its_end_is_told(tmp_path):
    (tmp_path / "ends").mkdir()
    launch = tmp_path / "slurm" / "jobs" / "a%2Fb-17-0"
    launch.mkdir(parents=True)
    for number, noted in enumerate(("75\n", "0\n")):  # stopped to go on, finished
        (launch / "ended").write_text(noted)
        rank(tmp_path, "a/b", 0, RANK="0", WORLD_SIZE="1", SLURMD_NODENAME="n1").wait()
        assert len(list(read_records(tmp_path, BREACHES))) == number
    assert ended_ranks(tmp_path, "a/b") == 1
