"""A communicator's data connections among all that its processes have, found without waiting for other ranks."""

import socket
from contextlib import closing
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from collectives.group.group_factory import make_group
from collectives.transport import nccl_sockets
from collectives.transport.nccl_sockets import NcclConnections
from collectives.transport.process_sockets import ProcessSockets
from mltcp.pacing.tcp_info import congestion_control
from tests.eventually import eventually
from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.transport.like_nccl import LikeNccl
from tests.unit.collectives.transport.test_gloo_sockets import TIMEOUT, Decoys, meet, tcp_store

pytestmark = pytest.mark.slow


def in_a_ring(transport):
    transport.connect((transport.rank + 1) % transport.ranks, (transport.rank - 1) % transport.ranks)


def expected(transport):
    """The data connections, as the transport itself knows them."""
    return sorted(
        (peer, each.getsockname(), each.getpeername())
        for peer, many in transport.data.items()
        for each in many
    )


def found(connections):
    return sorted((each.peer_rank, each.local, each.peer) for each in connections.sockets())


def among_decoys(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store, closing(LikeNccl(store, rank, ranks)) as nccl:
        decoys = Decoys(store, rank, ranks)
        decoys.connect()
        connections = NcclConnections(dist.PrefixStore("g", store), rank, ranks, ProcessSockets.now())
        told = []
        connections.when_found(told.extend)
        nccl.begin()
        decoys.connect()  # to a listener that was there before
        connections.after()
        later = Decoys(dist.PrefixStore("later", store), rank, ranks)
        at_first = found(connections)
        assert connections.before("all_reduce")
        assert not connections.before("all_reduce")
        in_a_ring(nccl)
        decoys.connect()
        later.connect()  # to one that was not, and stays
        meet(store, "connected", rank, ranks)
        connections.after()
        meet(store, "told", rank, ranks)
        connections.look_again()
        return at_first, found(connections), expected(nccl), len(told) == len(set(told))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_data_connections_are_found_with_their_ranks_and_nothing_else(tmp_path, ranks):
    for at_first, there, should, each_was_told_once in run_ranks(
        among_decoys, ranks, None, None, 60, tmp_path
    ):
        assert at_first == []
        assert len(should) == 2 * 3
        assert there == should
        assert each_was_told_once


def with_other_peers_later(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store, closing(LikeNccl(store, rank, ranks)) as nccl:
        connections = NcclConnections(store, rank, ranks, ProcessSockets.now())
        in_a_ring(nccl)
        connections.after()
        assert connections.before("all_to_all")
        opposite = (rank + 2) % ranks
        nccl.connect(opposite, opposite, turn="pairs")
        connections.after()
        meet(store, "told", rank, ranks)
        connections.look_again()
        return found(connections), expected(nccl)


def test_those_of_a_later_operation_are_found_too(tmp_path):
    for there, should in run_ranks(with_other_peers_later, 4, None, None, 60, tmp_path):
        assert len(should) == 4 * 3
        assert there == should


def while_one_rank_is_late(rank, ranks, directory):
    nccl_sockets.RETRIES_S = (0.0, 60.0)
    with tcp_store(directory, rank, ranks) as store, closing(LikeNccl(store, rank, ranks)) as nccl:
        connections = NcclConnections(store, rank, ranks, ProcessSockets.now())
        in_a_ring(nccl)
        if rank == 0:
            connections.after()
            alone = found(connections)
            store.set("first", "")
            store.wait(["second"], TIMEOUT)
            assert connections.is_due
            connections.look_again()
        else:
            store.wait(["first"], TIMEOUT)
            connections.after()
            alone = []
            store.set("second", "")
        return alone, found(connections) == expected(nccl), connections.is_due


def test_no_rank_waits_for_another_and_looks_again_later(tmp_path):
    outcome = run_ranks(while_one_rank_is_late, 2, None, None, 60, tmp_path)
    assert outcome == [([], True, False), ([], True, False)]


def with_a_stranger(rank, ranks, directory):
    nccl_sockets.RETRIES_S = (0.0, 0.01)
    with tcp_store(directory, rank, ranks) as store:
        connections = NcclConnections(store, rank, ranks, ProcessSockets.now())
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            connections.after()
        due = connections.is_due

        def given_up():
            connections.look_again()
            return connections.unmatched == 0

        return due, eventually(given_up), connections.is_due, found(connections)


def test_a_connection_with_a_stranger_is_given_up(tmp_path):
    assert run_ranks(with_a_stranger, 2, None, None, 60, tmp_path) == [(True, True, False, [])] * 2


# -- through a group ---------------------------------------------------------------------------------------------------


class Backend(dist.ProcessGroupGloo):
    def name(self):
        return "nccl"


class Group(dist.ProcessGroup):
    """A plain group that opens connections with its first all-reduce, as NCCL does, and reduces over Gloo."""

    def __init__(self, store, rank, ranks):
        super().__init__(rank, ranks)
        self.store = store
        self.transport = LikeNccl(store, rank, ranks)
        self.backend = Backend(store, rank, ranks, timeout=TIMEOUT)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.NCCL, self.backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
        self.parts = 0

    def allreduce(self, *arguments):
        if not self.transport.data:
            in_a_ring(self.transport)
        return self.backend.allreduce(*arguments)

    def get_group_store(self):
        return self.store

    def name(self):
        return "nccl"

    def split_group(self, new_ranks, *arguments, **options):
        self.parts += 1
        store = dist.PrefixStore(f"part-{self.parts}", self.store)
        return Group(store, new_ranks.index(self.rank()), len(new_ranks))


def through_groups(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        plain = []

        def build(_):
            plain.append(Group(dist.PrefixStore("world", store), rank, ranks))
            return plain[0]

        group = make_group(build, timedelta(seconds=30), "mltcp")
        part = group.split_group(list(range(ranks)))
        for each in (group, part):
            each.allreduce([torch.ones(4)]).wait()
        outcome = []
        for each, transport in ((group, plain[0].transport), (part, part._inner.transport)):
            should = set(expected(transport))
            eventually(lambda each=each, should=should: on_all_ranks(each, should <= set(found(each))))
            controls = {congestion_control(one.descriptor) for one in each.sockets()}
            outcome.append((len(should), len(each.sockets()), controls))
        meet(store, "found", rank, ranks)
        return outcome


def on_all_ranks(group, here):
    """Whether it holds on all ranks; an operation, since it is then that a group looks again."""
    holds = torch.tensor([float(here)])
    group.allreduce([holds]).wait()
    return holds.item() == group.size()


def test_a_groups_connections_are_managed_like_gloos_also_after_a_split(tmp_path):
    environment = {"MLTCP_CC": "reno"}
    outcome = run_ranks(through_groups, 2, None, environment, 60, tmp_path)
    # In the first there is that of Gloo's mesh, too.
    assert outcome == [[(6, 7, {"reno"}), (6, 6, {"reno"})]] * 2
