"""``mltcp-bench allreduce``: its definitions, its bad input, and a small sweep with real ranks."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import collectives
from bench.allreduce.sweep import OPERATIONS, SizeSweep, _Work, busbw_factor
from bench.cli.main import main
from tests.unit.collectives.ranks import run_ranks
from tests.warm.marks import commands

pytestmark = [pytest.mark.slow, commands("allreduce")]

COMMAND = [sys.executable, "-m", "bench.cli", "allreduce"]
SMALL = ["-b", "8", "-e", "4K", "-f", "8", "-n", "2"]


def run(*arguments):
    environment = {**os.environ, "MLTCP_CC": "none"}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=120
    )


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("all_to_all", 0.75), ("broadcast", 1)],
)
def test_bus_bandwidth_is_nccl_tests(operation, factor):
    assert busbw_factor(operation, 4) == factor


def test_a_backend_named_twice_is_two_groups():
    sweep = SizeSweep(("gloo", "gloo", "mltcp"), ("all_reduce",), 8, 64, 2.0)
    assert sweep.names == ["gloo", "gloo#2", "mltcp"]
    assert sweep.sizes() == [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backends", "smoke"], "gloo, mltcp"),
        (["--backends", ","], "backend: expected at least one of"),
        (["--operations", "all_scatter"], "reduce_scatter"),
        (["-b", "2M", "-e", "1M"], "-b 2M is more than -e 1M"),
        (["-f", "1"], "more than 1"),
        (["-n", "0"], "1 or more"),
        (["--calls-per-step", "0"], "--calls-per-step: expected 1 or more"),
        (["--ranks", "0"], "1 or more"),
        (["--dtype", "half"], "float, double"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, says, capsys):
    assert main(["allreduce", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert says in complaint
    assert complaint.count("\n") == 1


def test_a_sweep_of_all_operations_on_both_backends():
    done = run("--operations", "all", "--ranks", "3", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["ranks"], document["ok"]) == (1, 3, True)
    found = {(each["backend"], each["operation"]) for each in document["results"]}
    assert found == {(backend, operation) for backend in ("gloo", "mltcp") for operation in OPERATIONS}
    for each in document["results"]:
        assert each["wrong"] == 0
        assert each["size_bytes"] == 4 * each["count"]
        assert each["busbw_gbps"] == pytest.approx(each["algbw_gbps"] * busbw_factor(each["operation"], 3))


def test_the_table_ends_with_the_mean_and_ok():
    done = run("--backends", "gloo,gloo", "--calls-per-step", "1", *SMALL)
    assert done.returncode == 0, done.stderr
    *_, first, second, verdict = done.stdout.strip().splitlines()
    assert first.startswith("# mean bus bandwidth, gloo: ")
    assert second.startswith("# mean bus bandwidth, gloo#2: ")
    assert verdict == "# OK"


def spoiled(rank, ranks):
    """Rank 0's result is spoiled after each all-reduce: as many wrong elements must be counted."""
    work = _Work("all_reduce", 64, torch.float32, ranks, rank)
    plain = work.call

    def call(group):
        plain(group)
        if rank == 0:
            work.large[3:5] += 1

    work.call = call
    return work.check(dist.group.WORLD, 0)


def test_wrong_data_is_counted():
    assert run_ranks(spoiled) == [2, 0]


def stepping(rank, ranks):
    """Iterations and operations of the job that the steps of three blocks make, the first with one call too few."""
    work = _Work("all_reduce", 64, torch.float32, ranks, rank)
    for rounds in (9, 10, 10):
        work.repeat(dist.group.WORLD, rounds, calls_per_step=5)
    return [len(each.operations) for each in collectives.iterations()]


def test_an_optimizer_steps_after_so_many_calls():
    # A barrier precedes each block, and a part of a block has its own step.
    assert run_ranks(stepping) == [[6, 4, 6, 5, 6, 5]] * 2


def ranks_of(parent):
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.parametrize(
    ("killed", "by", "status"),
    [("rank", signal.SIGKILL, 1), ("launcher", signal.SIGINT, 130), ("launcher", signal.SIGKILL, -9)],
)
def test_nothing_is_left_of_a_sweep_that_is_cut_short(killed, by, status):
    running = subprocess.Popen(
        [*COMMAND, "-b", "64M", "-e", "128M", "-n", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(ranks_of(running.pid)) < 2:
        time.sleep(0.05)
    ranks = ranks_of(running.pid)
    try:
        os.kill(ranks[1] if killed == "rank" else running.pid, by)
        # Its ranks hold the pipes' other ends: this comes back when all are gone.
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == status, errors
