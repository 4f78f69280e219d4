"""A group's own connections among all that its processes have: Gloo over loopback, in real processes."""

import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from collectives.transport.gloo_sockets import Mesh
from collectives.transport.process_sockets import Listeners, new_listeners
from mltcp.pacing.tcp_info import addresses, tcp_sockets
from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.recording.test_traffic import acknowledged

pytestmark = pytest.mark.slow

TIMEOUT = timedelta(seconds=30)
S = 4 << 20


@contextmanager
def tcp_store(directory, rank, ranks):
    """A TCPStore, whose own connections must never be taken for a group's; the ranks learn its port from a file.

    All leave it together, so that nobody's groups are gone before all have looked at them.
    """
    file = dist.FileStore(str(directory / "port"), ranks)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, True, TIMEOUT, wait_for_workers=False)
        file.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(file.get("port")), ranks, False, TIMEOUT)
    yield store
    meet(store, "end", rank, ranks)
    # The store goes with rank 0, so that one is the last.
    store.set(f"left/{rank}", "")
    if rank == 0:
        store.wait([f"left/{each}" for each in range(ranks)], TIMEOUT)


def group(store, name, rank, ranks, during=lambda: None):
    """A Gloo group and its mesh; `during` runs while the group is made."""
    prefixed = dist.PrefixStore(name, store)
    with new_listeners() as listeners:
        during()
        gloo = dist.ProcessGroupGloo(prefixed, rank, ranks, timeout=TIMEOUT)
    return gloo, Mesh(prefixed, rank, ranks, listeners, TIMEOUT)


def meet(store, name, rank, ranks):
    """All ranks have come this far; by the store, so that no group's connection is used."""
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{each}" for each in range(ranks)], TIMEOUT)


class Decoys:
    """Connections between the same processes that have nothing to do with a group, and the listeners they go to."""

    def __init__(self, store, rank, ranks):
        self.store, self.rank, self.ranks = store, rank, ranks
        self.open = ExitStack()
        self.count = 0
        self.listener = self.open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.store.set(f"decoys/{rank}", str(self.listener.getsockname()[1]))

    def connect(self):
        """One connection with the next rank, one with the previous."""
        port = int(self.store.get(f"decoys/{(self.rank + 1) % self.ranks}"))
        self.open.enter_context(socket.create_connection(("127.0.0.1", port)))
        self.open.enter_context(self.listener.accept()[0])


def seen(mesh):
    return sorted((each.peer_rank, each.local, each.peer) for each in mesh.sockets())


def counted(mesh):
    """The acknowledged bytes, once nothing is in flight."""
    acknowledged([each.descriptor for each in mesh.sockets()])
    return mesh.acked_bytes()


def both_ends_agree(ranks, seen_by_rank):
    """Every rank has one connection with each other one, and its peer says the same of its other end."""
    for rank, sockets in enumerate(seen_by_rank):
        assert [peer for peer, _, _ in sockets] == [peer for peer in range(ranks) if peer != rank]
        for peer, local, remote in sockets:
            assert (rank, remote, local) in seen_by_rank[peer]


def two_groups_among_decoys(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        decoys = Decoys(store, rank, ranks)
        decoys.connect()
        kept = [group(store, name, rank, ranks, decoys.connect) for name in ("one", "two")]
        decoys.connect()
        return *(seen(mesh) for _, mesh in kept), len(list(tcp_sockets()))


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_group_finds_its_own_connections_with_the_right_ranks(tmp_path, ranks):
    one, two, counts = zip(*run_ranks(two_groups_among_decoys, ranks, None, None, 60, tmp_path), strict=True)
    both_ends_agree(ranks, one)
    both_ends_agree(ranks, two)
    for mine, other in zip(one, two, strict=True):
        assert not {local for _, local, _ in mine} & {local for _, local, _ in other}
    # What there was to be left out: two listeners and two connections of the groups, and more than twice as many.
    assert all(count >= 2 * (ranks - 1) + 2 + 2 * 4 + 1 for count in counts)


def beside_a_new_server(rank, ranks, directory):
    with ExitStack() as others, tcp_store(directory, rank, ranks) as store:

        def serve():
            server = others.enter_context(socket.create_server(("127.0.0.1", 0)))
            others.enter_context(socket.create_connection(server.getsockname()))
            others.enter_context(server.accept()[0])

        _gloo, mesh = group(store, "g", rank, ranks, serve)
        return seen(mesh)


def test_a_server_that_starts_meanwhile_and_its_clients_are_not_the_groups(tmp_path):
    both_ends_agree(3, run_ranks(beside_a_new_server, 3, None, None, 60, tmp_path))


def over_ipv6(rank, ranks, directory):
    options = dist.ProcessGroupGloo._Options()
    options._timeout = TIMEOUT
    with tcp_store(directory, rank, ranks) as store:
        with new_listeners() as listeners:
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="::1")]
            _gloo = dist.ProcessGroupGloo(store, rank, ranks, options)
        return seen(Mesh(store, rank, ranks, listeners, TIMEOUT))


def test_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no ::1 on this machine")
    found = run_ranks(over_ipv6, 3, None, None, 60, tmp_path)
    both_ends_agree(3, found)
    assert {local[0] for _, local, _ in found[0]} == {"::1"}


def from_one_port(rank, ranks, directory):
    """Ranks 1 and 2 connect from the same port, each to the rank before it, as the kernel allows."""
    with ExitStack() as open_sockets, tcp_store(directory, rank, ranks) as store:
        with new_listeners() as listeners:
            server = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        store.set(f"listener/{rank}", str(server.getsockname()[1]))
        port = int(store.get("port")) if rank == 2 else 0
        for peer in reversed(range(rank)):
            client = open_sockets.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port if peer == 1 else 0))
            client.connect(("127.0.0.1", int(store.get(f"listener/{peer}"))))
            if rank == 1:
                store.set("port", str(client.getsockname()[1]))
        for _ in range(rank + 1, ranks):
            open_sockets.enter_context(server.accept()[0])
        return seen(Mesh(store, rank, ranks, listeners, TIMEOUT))


def test_two_ranks_that_connect_from_the_same_port_are_told_apart(tmp_path):
    both_ends_agree(3, run_ranks(from_one_port, 3, None, None, 60, tmp_path))


def over_two_interfaces(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        _gloo, mesh = group(store, "g", rank, ranks)
        return mesh.complete, [peer for peer, _, _ in seen(mesh)]


def test_several_interfaces_make_several_connections_with_each_rank(tmp_path):
    environment = {"GLOO_SOCKET_IFNAME": "lo,lo"}
    found = run_ranks(over_two_interfaces, 3, None, environment, 60, tmp_path)
    assert found == [(True, [1, 1, 2, 2]), (True, [0, 0, 2, 2]), (True, [0, 0, 1, 1])]


def all_seen(mesh, store, name):
    """The sockets, once every rank has made a query."""
    mesh.sockets()
    meet(store, name, mesh.rank, mesh.size)
    return seen(mesh)


def alone_in_asking(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        gloo, mesh = group(store, "g", rank, ranks)
        gloo.allreduce([torch.ones(1)]).wait()
        return len(mesh.sockets()) if rank == 0 else None


def test_with_lazy_connections_a_rank_that_asks_alone_does_not_wait_for_others(tmp_path):
    environment = {"TORCH_GLOO_LAZY_INIT": "1"}
    assert run_ranks(alone_in_asking, 4, None, environment, 60, tmp_path)[0] <= 2


def lazily(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        decoys = Decoys(store, rank, ranks)
        gloo, mesh = group(store, "g", rank, ranks, decoys.connect)
        told = []
        mesh.when_found(told.extend)
        before = mesh.sockets(), mesh.acked_bytes(), list(told)
        meet(store, "before", rank, ranks)
        gloo.allreduce([torch.ones(S // 4)]).wait()
        ring = all_seen(mesh, store, "ring"), counted(mesh), mesh.complete
        meet(store, "counted", rank, ranks)
        gloo.alltoall_base(torch.ones(ranks), torch.ones(ranks), [], []).wait()
        full = all_seen(mesh, store, "full"), mesh.complete
        return before, ring, full, len(told) == len(set(told)) == ranks - 1


def test_with_lazy_connections_each_is_found_once_it_is_there(tmp_path):
    environment = {"TORCH_GLOO_LAZY_INIT": "1"}
    outcome = run_ranks(lazily, 4, None, environment, 60, tmp_path)
    for rank, (before, ring, _, each_was_told_once) in enumerate(outcome):
        assert before == ((), 0, [])
        # The ring of an all-reduce needs the two neighbours, and never the rank opposite.
        assert [peer for peer, _, _ in ring[0]] == sorted([(rank - 1) % 4, (rank + 1) % 4])
        assert ring[1] == pytest.approx(1.5 * S, rel=0.01)
        assert not ring[2]
        assert each_was_told_once
    both_ends_agree(4, [full for _, _, (full, _), _ in outcome])
    assert all(complete for _, _, (_, complete), _ in outcome)


def all_reduces_of_two_groups(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        gloo, mesh = group(store, "counted", rank, ranks)
        other, _ = group(store, "other", rank, ranks)
        before = counted(mesh)
        # Nobody begins before everybody has counted.
        meet(store, "before", rank, ranks)
        gloo.allreduce([torch.ones(S // 4)]).wait()
        meet(store, "after", rank, ranks)
        after = counted(mesh)
        other.allreduce([torch.ones(S // 4)]).wait()
        return after - before, counted(mesh) - after


def test_what_an_all_reduce_sends_is_counted_and_that_of_other_groups_is_not(tmp_path):
    for growth, afterwards in run_ranks(all_reduces_of_two_groups, 4, None, None, 60, tmp_path):
        assert growth == pytest.approx(1.5 * S, rel=0.002)
        assert afterwards == 0


def used_again(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        gloo, mesh = group(store, "g", rank, ranks)
        descriptors = [each.descriptor for each in mesh.sockets()]
        meet(store, "found", rank, ranks)
        del gloo
        for descriptor in descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        closed = mesh.acked_bytes(), mesh.sockets()
        server = socket.create_server(("127.0.0.1", 0))
        other = socket.create_connection(server.getsockname())
        for descriptor in descriptors:
            os.dup2(other.fileno(), descriptor)
            addresses(descriptor)
        return closed, (mesh.acked_bytes(), mesh.sockets())


def test_a_group_that_is_gone_has_no_connections_whoever_has_its_descriptors(tmp_path):
    assert run_ranks(used_again, 3, None, None, 60, tmp_path) == [((None, ()), (None, ()))] * 3


def at_one_store(rank, ranks, directory):
    found = []
    with tcp_store(directory, rank, ranks) as store:
        for turn in range(5):
            prefixed = dist.PrefixStore(f"gloo-{turn}", store)
            with new_listeners() as listeners:
                gloo = dist.ProcessGroupGloo(prefixed, rank, ranks, timeout=TIMEOUT)
            found.append(seen(Mesh(dist.PrefixStore("same", store), rank, ranks, listeners, TIMEOUT)))
            meet(prefixed, "seen", rank, ranks)
            del gloo
    return found


def test_an_earlier_group_at_the_same_store_does_not_mislead(tmp_path):
    for turn in zip(*run_ranks(at_one_store, 3, None, None, 60, tmp_path), strict=True):
        both_ends_agree(3, turn)


def alone(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store, new_listeners() as listeners:
        if rank == 0:
            with pytest.raises(RuntimeError, match="timeout"):
                Mesh(store, rank, ranks, listeners, timedelta(milliseconds=300))


def test_a_rank_that_does_not_come_is_the_stores_time_out(tmp_path):
    run_ranks(alone, 2, None, None, 60, tmp_path)


def through_the_backend(rank, ranks):
    half = dist.new_group([0, 1])
    world = sorted(each.peer_rank for each in dist.group.WORLD.sockets())
    return world, [each.peer_rank for each in half.sockets()] if rank < 2 else None


def test_the_backends_groups_know_their_connections():
    assert run_ranks(through_the_backend, 3) == [([1, 2], [1]), ([0, 2], [0]), ([0, 1], None)]


# -- several threads ---------------------------------------------------------------------------------------------------


def test_listeners_of_two_blocks_at_a_time_belong_to_neither():
    with new_listeners() as outer, new_listeners() as inner, socket.create_server(("127.0.0.1", 0)):
        assert outer.mixed
        assert inner.mixed
    with new_listeners() as alone, socket.create_server(("127.0.0.1", 0)) as listener:
        pass
    assert not alone.mixed
    listener.close()
    with new_listeners() as alone:
        listener = socket.create_server(("127.0.0.1", 0))
    assert alone.addresses == {listener.getsockname()}
    listener.close()
    assert not outer.addresses
    assert not inner.addresses


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_was_asked_and_the_store_serves_others_meanwhile():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found, raised = Listeners(frozenset({("127.0.0.1", 1)})), []

    def wait():
        with pytest.raises(dist.DistStoreError):
            Mesh(store, 0, 2, found, timedelta(seconds=2))
        raised.append(time.monotonic())

    began_s = time.monotonic()
    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        store.set("another thread's", "value")  # would wait as well if the store waited
        served_s = time.monotonic()
        time.sleep(0.01)
    waiting.join()
    assert raised[0] - began_s >= 2
    assert served_s - began_s > 0.5


def test_where_a_rank_does_not_know_its_listeners_no_connection_is_known():
    store = dist.HashStore()
    store.set("mltcp/sockets/1/listeners/1", "[]")
    mesh = Mesh(store, 0, 2, Listeners(frozenset({("127.0.0.1", 1)})), timedelta(seconds=5))
    assert (mesh.acked_bytes(), mesh.sockets(), mesh.complete) == (None, (), True)


def two_groups_at_a_time(rank, ranks, directory):
    groups = []
    with tcp_store(directory, rank, ranks) as store:
        dist.init_process_group("mltcp", store=store, rank=rank, world_size=ranks)

        def make():
            groups.append(dist.new_group([*range(ranks)]))

        for _ in range(5):
            making = [threading.Thread(target=make) for _ in range(2)]
            for thread in making:
                thread.start()
            for thread in making:
                thread.join()
    return len(groups)


def test_two_threads_can_make_groups_at_a_time(tmp_path):
    assert run_ranks(two_groups_at_a_time, 3, None, None, 60, tmp_path) == [10, 10, 10]
