"""Beside NCCL, Gloo opens no connection before an operation on CPU tensors needs it."""

import os

import pytest
import torch
import torch.distributed as dist

from collectives.group.inner_group import connecting_late
from mltcp.pacing.tcp_info import is_listening, tcp_sockets
from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.transport.test_gloo_sockets import TIMEOUT, meet, tcp_store

pytestmark = pytest.mark.slow


def connections():
    return sum(not is_listening(each) for each in tcp_sockets())


def some_groups(rank, ranks, directory, late):
    with tcp_store(directory, rank, ranks) as store:
        meet(store, "begun", rank, ranks)
        others = connections()
        meet(store, "others counted", rank, ranks)
        groups = []
        for number in range(3):
            with connecting_late(late):
                groups.append(
                    dist.ProcessGroupGloo(dist.PrefixStore(str(number), store), rank, ranks, timeout=TIMEOUT)
                )
        meet(store, "made", rank, ranks)
        idle = connections() - others
        meet(store, "counted", rank, ranks)
        tensor = torch.ones(1)
        groups[0].allreduce([tensor]).wait()
        meet(store, "reduced", rank, ranks)
        return idle, tensor.item(), connections() - others, os.environ.get("TORCH_GLOO_LAZY_INIT")


def test_connections_are_opened_by_the_operation_that_needs_them(tmp_path):
    for idle, total, used, setting in run_ranks(some_groups, 4, None, None, 60, tmp_path, True):
        assert (idle, total, setting) == (0, 4.0, None)
        assert 2 <= used <= 3


def test_what_the_user_has_chosen_is_kept(tmp_path):
    environment = {"TORCH_GLOO_LAZY_INIT": "0"}
    for idle, total, used, setting in run_ranks(some_groups, 4, None, environment, 60, tmp_path, True):
        assert (idle, total, used, setting) == (3 * 3, 4.0, 3 * 3, "0")
