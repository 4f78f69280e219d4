"""The ranks of a soak's jobs notice a GPU that was given twice."""

import os
import subprocess
import sys

from bench.soak.records import read_records

COMMAND = [sys.executable, "-m", "bench.soak.rank"]


def rank(tmp_path, job, seconds, status="0", **options):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "s0-0,s0-1", "LOCAL_RANK": "1", "MLTCP_JOB": job}
    arguments = [str(tmp_path), str(tmp_path), str(seconds), status]
    return subprocess.Popen([*COMMAND, *arguments], env=environment, **options)


def test_a_rank_alone_ends_as_it_was_told(tmp_path):
    assert rank(tmp_path, "a", 0, "3").wait() == 3
    assert rank(tmp_path, "b", 0).wait() == 0
    assert list(read_records(tmp_path, "breaches")) == []


def test_a_gpu_that_is_held_is_told(tmp_path):
    first = rank(tmp_path, "a", 60)
    try:
        while not (tmp_path / "s0-1").exists() or "a" not in (tmp_path / "s0-1").read_text():
            assert first.poll() is None
        assert rank(tmp_path, "b", 0).wait() == 1
    finally:
        first.kill()
        first.wait()
    (breach,) = read_records(tmp_path, "breaches")
    assert breach == f"GPU s0-1 was given to b while {first.pid} a had it"
