import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.service.state.network_tree import NetworkTree


@st.composite
def trees(draw):
    """Switches, each below an earlier one, and servers below any of them."""
    above = {f"w{each}": f"w{draw(st.integers(0, each - 1))}" for each in range(1, draw(st.integers(1, 6)))}
    switches = ["w0", *above]
    servers = {f"s{each}": draw(st.sampled_from(switches)) for each in range(draw(st.integers(1, 8)))}
    chosen = draw(st.lists(st.sampled_from(sorted(servers)), min_size=1))
    return above, servers, chosen


@pytest.mark.slow
@given(trees())
def test_traffic_uses_the_links_that_the_simulator_has_it_use(made):
    above, servers, chosen = made
    tree = NetworkTree()
    for name, switch in (*servers.items(), *above.items()):
        tree.add(name, switch, 1)
    cluster = Cluster(
        tuple(Server(name, (Gpu(),), switch) for name, switch in servers.items()),
        (Switch("w0"), *(Switch(name, switch) for name, switch in above.items())),
    )
    numbers = [list(servers).index(name) for name in chosen]
    expected = {cluster.links[link].name for link in cluster.links_between(numbers)}
    assert set(tree.between(chosen)) == expected
    assert len(tree.between(chosen)) == len(expected)


def test_roots_have_no_limit_among_them():
    tree = NetworkTree()
    tree.add("a", "left", 1)
    tree.add("b", "right", 1)
    assert set(tree.between(["a", "b"])) == {"a", "b"}


def test_a_later_uplink_is_on_the_way():
    tree = NetworkTree()
    for name, switch in (("a", "r0"), ("b", "r1")):
        tree.add(name, switch, 1)
    assert set(tree.between("ab")) == {"a", "b"}
    tree.add("r0", "core", 1)
    assert set(tree.between("ab")) == {"a", "b", "r0"}
