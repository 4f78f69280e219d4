"""Torch's hooks on operations (since 2.14) see what they see on plain Gloo, once each, whoever registers them."""

import json

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from tests.unit.collectives.ranks import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(dist.ProcessGroup, "register_pre_hook"), reason="torch has hooks from 2.14 on"
    ),
]
NAMES = [("mltcp", {}), ("gloo", {"MLTCP_WRAP": "gloo"})]


def some_operations(rank):
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_gather_into_tensor(torch.zeros(8), tensor)
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    functional.all_reduce(tensor, "sum", dist.group.WORLD).sum().item()
    dist.barrier()


def hooked(rank, ranks):
    group = dist.group.WORLD
    before, after = [], []
    group.register_pre_hook(
        1, lambda seen: before.append((str(seen.name), seen.root, len(seen.input_tensors)))
    )
    group.register_post_hook(2, lambda seen: after.append((str(seen.name), seen.work is not None)))
    some_operations(rank)
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    dist.all_reduce(torch.ones(1))
    return before, after


def checked_for_nan(rank, ranks):
    outcomes = []
    for value in (1.0, float("nan")):
        try:
            dist.all_reduce(torch.tensor([value]), group=c10d._get_default_group())
        except Exception as error:
            outcomes.append((type(error).__name__, "NaN" in str(error)))
        else:
            outcomes.append("passed")
    return outcomes


def flight_recorded(rank, ranks):
    before = len(flight_record())
    some_operations(rank)
    return [entry["profiling_name"] for entry in flight_record()[before:]]


def flight_record():
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False)).get("entries", [])


@pytest.mark.parametrize(("backend", "environment"), NAMES)
def test_a_hook_is_called_once_for_each_operation(backend, environment):
    assert run_ranks(hooked, 2, backend, environment) == run_ranks(hooked, 2, "gloo")


@pytest.mark.parametrize(("backend", "environment"), NAMES)
def test_a_tensor_with_nan_is_refused_where_torch_is_told_to_look(backend, environment):
    look = {"TORCH_DIST_NAN_CHECK": "1"}
    plain = run_ranks(checked_for_nan, 2, "gloo", look)
    assert plain[0] == ["passed", ("RuntimeError", True)]
    assert run_ranks(checked_for_nan, 2, backend, environment | look) == plain


@pytest.mark.parametrize(("backend", "environment"), NAMES)
def test_the_flight_recorder_has_each_operation_once(backend, environment):
    keep = {"TORCH_FR_BUFFER_SIZE": "2000"}
    plain = run_ranks(flight_recorded, 2, "gloo", keep)
    assert len(plain[0]) >= 5
    assert run_ranks(flight_recorded, 2, backend, environment | keep) == plain
