"""Faults around a group: dead ranks, hooks that raise, invalid settings, groups made and destroyed, forks."""

import json
import logging
import multiprocessing
import os
import signal
import time
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.group import job
from tests.unit.collectives.ranks import Died, join, run_ranks, started
from tests.unit.mltcp.daemon.serving import serving

pytestmark = pytest.mark.slow

BIG = 4_000_000
MANY_GROUPS = 40


def killed_in_an_all_reduce(rank, ranks, marked):
    tensor = torch.ones(BIG)
    if marked:
        with collectives.iteration():
            dist.all_reduce(tensor)
    for _ in range(3):
        dist.all_reduce(tensor)
    for _ in range(1000):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            job.current().recorder.completion.drain(10)
            return str(error)
    return "no error"


@pytest.mark.parametrize("marked", [False, True], ids=["attended to", "not attended to"])
def test_the_others_get_the_inner_backends_error_when_a_rank_dies(marked, tmp_path):
    file = tmp_path / "profile.json"
    environment = {"MLTCP_PROFILE": str(file)}
    with started(killed_in_an_all_reduce, 3, "mltcp", environment, 60, marked) as running:
        outcome = running.results(allow_death=True)
    assert isinstance(outcome[1], Died)
    assert "gloo" in outcome[0] + outcome[2]
    assert "no error" not in outcome
    assert json.loads(file.read_text())["schema"] == 1


def killed_while_training(rank, ranks):
    with collectives.iteration():
        dist.all_reduce(torch.ones(BIG))
    job.current().recorder.completion.drain(10)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_profile_so_far_is_on_disk_whatever_happens_to_the_ranks(tmp_path):
    file = tmp_path / "profile.json"
    with started(killed_while_training, environment={"MLTCP_PROFILE": str(file)}) as running:
        running.results(allow_death=True)
    document = json.loads(file.read_text())
    assert document["iterations"] == 1
    assert [each["name"] for each in document["last"]["operations"]] == ["all_reduce"]


def with_hooks_that_raise(rank, ranks, directory):
    logging.basicConfig(force=True, filename=directory / f"rank {rank}.log")

    def broken(record):
        raise ValueError("a hook's own fault")

    for register in (collectives.on_operation, collectives.on_iteration_start, collectives.on_iteration_end):
        register(broken)
    tensor = torch.ones(4)
    for _ in range(3):
        with collectives.iteration():
            dist.all_reduce(tensor)
    job.current().recorder.completion.drain(10)
    return tensor.tolist(), job.current().recorder.count


def test_a_hook_that_raises_loses_no_operation_and_is_reported_once(tmp_path):
    assert run_ranks(with_hooks_that_raise, 2, "mltcp", None, 60, tmp_path) == [([8.0] * 4, 3)] * 2
    for log in tmp_path.glob("rank *.log"):
        assert log.read_text().count("ValueError: a hook's own fault") == 3
    assert len(list(tmp_path.iterdir())) == 2


def with_hooks(rank, ranks):
    seen = []
    removals = [
        collectives.on_iteration_start(lambda start: seen.append(("start", start.number))),
        collectives.on_operation(lambda operation: seen.append((operation.name, operation.bytes))),
        collectives.on_iteration_end(
            lambda it: seen.append(("end", it.number, len(it.operations), it.bytes))
        ),
    ]
    with collectives.iteration():
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(2), 0)
    job.current().recorder.completion.drain(10)
    for remove in removals:
        remove()
    with collectives.iteration():
        dist.all_reduce(torch.ones(4))
    job.current().recorder.completion.drain(10)
    return seen


def test_hooks_are_told_of_iterations_and_operations_in_order():
    expected = [("start", 0), ("all_reduce", 16), ("broadcast", 8), ("end", 0, 2, 24)]
    assert run_ranks(with_hooks) == [expected] * 2


def held_back_by_a_gate(rank, ranks):
    begun = {}
    collectives.on_operation(
        lambda operation: (begun.setdefault("at", time.monotonic_ns()), time.sleep(0.05))
    )
    with collectives.iteration():
        dist.all_reduce(torch.ones(4))
    return collectives.iterations()[0].operations[0].submitted_ns - begun["at"]


def test_an_operation_waits_for_its_hook():
    assert all(held_ns >= 50_000_000 for held_ns in run_ranks(held_back_by_a_gate))


def joining(rank, ranks, directory):
    try:
        join(directory / "store", rank, ranks, timeout_s=10)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "joined"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("MLTCP_CC", "nonsense", "mltcp_cubic"),
        ("MLTCP_STRICT", "perhaps", "1 or 0"),
        ("MLTCP_WRAP", "mpi", "gloo, nccl"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line_that_names_what_can(tmp_path, variable, value, says):
    for outcome in run_ranks(joining, 2, None, {variable: value}, 60, tmp_path):
        assert outcome.startswith("UsageError")
        assert f"{variable}: expected " in outcome
        assert outcome.endswith(f"got {value!r}")
        assert says in outcome
        assert "\n" not in outcome


def test_a_profile_that_cannot_be_written_is_refused(tmp_path):
    file = tmp_path / "no" / "such" / "directory" / "p.json"
    outcome = run_ranks(joining, 1, None, {"MLTCP_PROFILE": str(file)}, 60, tmp_path)
    assert str(file) in outcome[0]


def made_again(rank, ranks, directory):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for number in range(MANY_GROUPS):
        join(directory / f"store-{number}", rank, ranks)
        half = dist.new_group(list(range(ranks)))
        tensor = torch.ones(8)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.all_reduce(tensor, group=half)
        del half
        dist.destroy_process_group()
        if number in (4, MANY_GROUPS - 1):
            job.current().recorder.completion.drain(10)
            counts.append(descriptors())
    return counts


def test_groups_made_and_destroyed_many_times_leave_no_descriptor(tmp_path):
    for early, late in run_ranks(made_again, 2, None, None, 60, tmp_path):
        assert late <= early


def forks(rank, ranks):
    with collectives.iteration():
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(job.current().recorder.count).encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_child = int(os.read(reader, 8))
    dist.all_reduce(torch.ones(1))
    return in_child, job.current().recorder.count


def test_a_forked_child_has_no_part_in_its_parents_job():
    assert run_ranks(forks) == [(0, 1)] * 2


def spawned_rank(rank, directory, queue):
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none"})
    join(directory / "store", rank, 2)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor)
    queue.put(tensor.tolist())
    dist.destroy_process_group()


def test_spawned_ranks_need_nothing_more(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=spawned_rank, args=(rank, tmp_path, queue)) for rank in range(2)]
    for each in ranks:
        each.start()
    assert [queue.get(timeout=120) for _ in ranks] == [[1.0, 1.0]] * 2
    for each in ranks:
        each.join(60)
        assert each.exitcode == 0


def waits_for_ever(rank, ranks):
    short = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    error = None
    if rank == 0:
        with pytest.raises(RuntimeError) as error:
            dist.all_reduce(torch.ones(1), group=short)
    dist.barrier()  # until then the other rank is there, and silent
    return str(error and error.value)


def test_an_operation_times_out_with_the_inner_backends_error():
    assert "imed out" in run_ranks(waits_for_ever)[0]


def group_without_rank_0(rank, ranks, directory):
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    # A default group of two backends is not wrapped, and so is not the job's first group.
    join(directory / "store", rank, ranks, "cpu:gloo,cuda:fake", 10.0)
    group = dist.new_group([1, 2], backend="gloo")
    tensor = torch.full((2,), float(rank))
    if rank:
        dist.all_reduce(tensor, group=group)
    member = job.current().membership
    registered = None if member is None else member.registered
    dist.barrier()
    return tensor.tolist(), type(group).__name__ if rank else "", registered and registered.number


@pytest.mark.parametrize("answers", [False, True])
def test_the_first_group_may_be_one_without_rank_0(tmp_path, answers):
    """Its ranks must not wait for what rank 0 would say of the run; with a daemon they are members of one job."""
    around = {"MLTCP_WRAP": "gloo", "MLTCP_DAEMON": str(tmp_path / "sock")}
    with serving(tmp_path) if answers else nullcontext():
        zero, one, two = run_ranks(group_without_rank_0, 3, None, around, 60, tmp_path)
    assert (zero[0], one[:2], two[:2]) == (
        [0.0, 0.0],
        ([3.0, 3.0], "MltcpProcessGroup"),
        ([3.0, 3.0], "MltcpProcessGroup"),
    )
    assert one[2] == two[2]
    assert (one[2] is not None) == answers
