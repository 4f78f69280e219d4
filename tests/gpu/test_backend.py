"""The backend on CUDA: over NCCL with one GPU per rank, over Gloo where ranks share a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
ONE_GPU = pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs exactly one GPU")
SCRIPT = Path(__file__).with_name("train.py")


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def trained(backend, ranks, *more, control="none"):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, str(SCRIPT), backend, *more],
        env={**os.environ, "MLTCP_CC": control, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


def test_one_rank_trains_as_on_nccl():
    ours, _ = trained("mltcp", 1)
    plain, _ = trained("nccl", 1)
    assert (ours["sha256"], ours["losses"]) == (plain["sha256"], plain["losses"])
    assert (ours["inside"], ours["iterations"]) == ("nccl", 14)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_train_as_on_nccl():
    ours, _ = trained("mltcp", 2)
    plain, _ = trained("nccl", 2)
    assert (ours["sha256"], ours["losses"]) == (plain["sha256"], plain["losses"])
    assert ours["inside"] == "nccl"


@ONE_GPU
def test_ranks_that_share_a_gpu_train_as_on_gloo_and_are_told_once():
    ours, said = trained("mltcp", 2)
    plain, _ = trained("gloo", 2)
    assert (ours["sha256"], ours["losses"]) == (plain["sha256"], plain["losses"])
    assert ours["inside"] == "gloo"
    assert said.count("ranks share a GPU") == 1


@ONE_GPU
def test_two_hosts_of_nccl_train_as_on_nccl_and_their_sockets_are_known():
    ours, _ = trained("mltcp", 2, "hosts")
    plain, _ = trained("nccl", 2, "hosts")
    assert (ours["sha256"], ours["losses"]) == (plain["sha256"], plain["losses"])
    assert (ours["inside"], ours["iterations"]) == ("nccl", 14)
    assert ours["graph"] == plain["graph"] == 2.0**10
    traffic = ours["traffic"]
    assert traffic["sockets"] > 0
    assert traffic["acked"] == pytest.approx(traffic["sent"], rel=0.02)


@ONE_GPU
def test_sockets_of_nccl_get_the_jobs_congestion_control():
    loaded = subprocess.run(
        [sys.executable, "-m", "mltcp.cli", "load", "mltcp_reno"], capture_output=True, text=True
    )
    if loaded.returncode:
        pytest.skip(loaded.stderr)
    try:
        ours, _ = trained("mltcp", 2, "hosts", control="mltcp_reno")
    finally:
        subprocess.run([sys.executable, "-m", "mltcp.cli", "unload", "mltcp_reno"], check=True)
    assert ours["inside"] == "nccl"
    assert set(ours["controls"]) == {"mltcp_reno"}
