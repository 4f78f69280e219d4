"""GPUs for a job whose number alone was decided: one node, else one rack, else several."""

from hypothesis import given
from hypothesis import strategies as st

from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.policies.schedulers.candidates import racks_of
from placement.policies.schedulers.free_gpus import FreeGpus


def racks(*nodes_of_racks):
    """A cluster of racks, each a list of its nodes' GPUs."""
    servers = tuple(
        Server(f"r{rack}n{node}", (Gpu(),) * gpus, f"r{rack}")
        for rack, nodes in enumerate(nodes_of_racks)
        for node, gpus in enumerate(nodes)
    )
    return Cluster(servers, (Switch("core"), *(Switch(f"r{n}", "core") for n in range(len(nodes_of_racks)))))


def test_a_job_that_fits_no_node_goes_to_the_tightest_rack_that_holds_it():
    cluster = racks([1, 1, 1, 1], [1, 1, 1], [1, 1])
    assert FreeGpus(cluster, {}).take_room(3) == (4, 5, 6)
    assert FreeGpus(cluster, {"held": (4,)}).take_room(3) == (0, 1, 2)
    assert FreeGpus(cluster, {"held": (4,)}).take_room(2) == (5, 6)


def test_a_job_that_fits_no_rack_fills_nodes_up():
    assert FreeGpus(racks([4, 2], [3, 4]), {}).take_room(8) == (0, 1, 2, 4, 5, 6, 7, 8)


def test_a_node_comes_before_a_rack():
    assert FreeGpus(racks([1, 1], [4], [1, 1, 1]), {}).take_room(2) == (2, 3)


counts = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)


@given(counts, st.data())
def test_it_takes_free_gpus_of_one_rack_if_one_has_room(nodes_of_racks, data):
    cluster = racks(*nodes_of_racks)
    every = range(len(cluster.gpus))
    held = tuple(sorted(data.draw(st.sets(st.sampled_from(every), max_size=len(every) - 1))))
    free = FreeGpus(cluster, {"held": held})
    wanted = data.draw(st.lists(st.integers(1, free.total), min_size=1, max_size=3))
    left = [gpu for gpu in every if gpu not in held]
    for gpus in wanted:
        taken = free.take_room(gpus)
        if gpus > len(left):
            assert taken is None
            continue
        assert set(taken) <= set(left)
        assert list(taken) == sorted(set(taken))
        assert len(taken) == gpus
        rooms = [sum(1 for gpu in left if racks_of(cluster, [gpu]) == {name}) for name in _names(cluster)]
        assert (len(racks_of(cluster, taken)) == 1) == (max(rooms) >= gpus)
        left = [gpu for gpu in left if gpu not in taken]
        assert free.total == len(left)


def _names(cluster):
    return {server.switch for server in cluster.servers}
