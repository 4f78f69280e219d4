"""Payload and root of a call, in each of torch's signatures, by position and by keyword in any order."""

from datetime import timedelta
from itertools import permutations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.group import torch_version
from collectives.group.payload import payload_bytes, root_of

IN, OUT = torch.zeros(5), torch.zeros(7)
BYTES = IN.nbytes
SOON = timedelta(seconds=5)


def options(kind, root=None):
    made = kind()
    if root is not None:
        made.rootRank = root
    return made


SUM = dist.ReduceOp.SUM
TO_1 = options(c10d.BroadcastOptions, 1)
CALLS = [
    ("all_reduce", {"tensors": [IN], "opts": options(c10d.AllreduceOptions)}, 0),
    ("all_reduce", {"tensors": [IN], "op": SUM, "timeout": SOON}, 0),
    ("all_reduce", {"tensor": IN, "op": SUM, "timeout": SOON}, 0),
    ("broadcast", {"tensors": [IN], "opts": TO_1}, 1),
    ("broadcast", {"tensor": IN, "root": 1, "timeout": SOON}, 1),
    ("reduce", {"tensors": [IN], "opts": options(c10d.ReduceOptions, 1)}, 1),
    ("reduce", {"tensor": IN, "root": 1, "op": SUM, "timeout": SOON}, 1),
    ("all_gather", {"output_tensors": [[OUT]], "input_tensors": [IN], "opts": c10d.AllgatherOptions()}, 0),
    ("all_gather", {"output_tensors": [OUT], "input_tensor": IN, "timeout": SOON}, 0),
    ("all_gather", {"output": OUT, "input": IN, "opts": c10d.AllgatherOptions()}, 0),
    ("reduce_scatter", {"output_tensors": [OUT], "input_tensors": [[IN]]}, 0),
    ("reduce_scatter", {"output": OUT, "input": [IN], "op": SUM, "timeout": SOON}, 0),
    (
        "all_to_all",
        {"output": OUT, "input": IN, "output_split_sizes": [], "input_split_sizes": [], "timeout": SOON},
        0,
    ),
    ("all_to_all", {"output_tensors": [OUT], "input_tensors": [IN]}, 0),
    ("gather", {"output_tensors": [[OUT]], "input_tensors": [IN], "opts": options(c10d.GatherOptions, 1)}, 1),
    ("gather", {"output_tensors": [OUT], "input_tensor": IN, "root": 1, "timeout": SOON}, 1),
    (
        "scatter",
        {"output_tensors": [OUT], "input_tensors": [[IN]], "opts": options(c10d.ScatterOptions, 1)},
        1,
    ),
    ("scatter", {"output_tensor": OUT, "input_tensors": [IN], "root": 1, "timeout": SOON}, 1),
]


@pytest.mark.parametrize(("name", "call", "root"), CALLS)
def test_every_way_to_pass_the_arguments_has_the_same_payload_and_root(name, call, root):
    names = list(call)
    for positional in range(len(names) + 1):
        args = [call[each] for each in names[:positional]]
        for order in permutations(names[positional:]):
            kwargs = {each: call[each] for each in order}
            assert payload_bytes(name, args, kwargs) == BYTES, (positional, order)
            assert root_of(name, args, kwargs) == root, (positional, order)


@pytest.mark.parametrize("args", [(), ([IN],), ([IN], None), ([IN], "one"), ([IN], SOON)])
def test_a_call_that_torch_refuses_has_root_0_and_is_left_to_torch(args):
    assert root_of("broadcast", args, {}) == 0


def test_a_barrier_has_no_payload():
    for args, kwargs in [((), {}), ((c10d.BarrierOptions(),), {}), ((SOON,), {}), ((), {"timeout": SOON})]:
        assert (payload_bytes("barrier", args, kwargs), root_of("barrier", args, kwargs)) == (0, 0)


@pytest.mark.parametrize(
    ("name", "earlier"),
    [("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")],
)
def test_a_function_is_called_by_the_name_that_this_torch_has_for_it(monkeypatch, name, earlier):
    called = []
    monkeypatch.delattr(dist, name, raising=False)
    monkeypatch.setattr(dist, earlier, lambda *args, **kwargs: called.append((args, kwargs)))
    getattr(torch_version, name)(1, 2, group=None)
    assert called == [((1, 2), {"group": None})]
    monkeypatch.setattr(dist, name, lambda *args: called.append(args), raising=False)
    getattr(torch_version, name)(3)
    assert called[1:] == [(3,)]
