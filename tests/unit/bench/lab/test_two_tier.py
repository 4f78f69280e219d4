"""The two-tier lab as data: the links that policies see are those of the lab."""

from collections import deque
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lab.link import Link
from bench.lab.topology import LabServer, LabSwitch, Topology, Trunk
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from mltcp.core.errors import UsageError

LINK = Link(10**8, 10**5)
SHAPES = st.builds(
    TwoTier,
    racks=st.integers(1, 5),
    servers=st.integers(1, 5),
    slots=st.integers(1, 4),
    oversubscription=st.fractions(Fraction(1, 2), 4, max_denominator=4),
)


def way(topology, source, target):
    """The trunks from one place to another, found by search."""
    reached, waiting = {source: ()}, deque([source])
    while waiting:
        here = waiting.popleft()
        for trunk in topology.trunks:
            if here in (trunk.left, trunk.right):
                there = trunk.right if here == trunk.left else trunk.left
                if there not in reached:
                    reached[there] = (*reached[here], trunk.name)
                    waiting.append(there)
    return reached[target]


@given(SHAPES)
def test_links_have_the_same_names_order_and_rates_in_the_lab_and_in_the_cluster(shape):
    topology, cluster = two_tier(shape), two_tier_cluster(shape)
    assert [link.name for link in cluster.links] == [trunk.name for trunk in topology.trunks]
    for link, trunk in zip(cluster.links, topology.trunks, strict=True):
        assert link.speed * shape.nic.rate_bps == trunk.link.rate_bps == shape.capacities_bps[link.name]
    assert [len(server.gpus) for server in cluster.servers] == [shape.slots] * len(topology.servers)


@given(SHAPES, st.data())
def test_a_transfer_uses_the_trunks_that_the_cluster_says(shape, data):
    topology, cluster = two_tier(shape), two_tier_cluster(shape)
    numbers = st.integers(0, len(cluster.servers) - 1)
    one, other = data.draw(numbers), data.draw(numbers)
    said = {cluster.links[link].name for link in cluster.links_between([one, other])}
    assert said == set(way(topology, cluster.servers[one].name, cluster.servers[other].name))


@given(st.integers(1, 8))
def test_a_racks_nics_have_twice_the_rate_of_its_uplink(servers):
    shape = TwoTier(servers=servers)
    assert servers * shape.nic.rate_bps == 2 * shape.uplink.rate_bps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"racks": 0}, "racks: expected 1 to 64, got 0"),
        ({"slots": 65}, "slots: expected 1 to 64, got 65"),
        ({"racks": 9, "servers": 8}, "expected at most 64 servers, got 9 racks of 8"),
        ({"oversubscription": Fraction(0)}, "oversubscription: expected more than 0, got 0"),
    ],
)
def test_shapes_that_cannot_be(changes, message):
    with pytest.raises(UsageError, match=message):
        TwoTier(**changes)


def test_servers_are_known_at_every_port_that_leads_to_them():
    topology = two_tier(TwoTier(racks=2, servers=2))
    a, b, c, d = topology.servers
    assert topology.ports_of("r0") == {"r0s0": (a,), "r0s1": (b,), "r0": (c, d)}
    assert topology.ports_of("core") == {"r0": (a, b), "r1": (c, d)}
    assert [server.address for server in topology.servers] == [f"10.77.255.{n}" for n in (1, 2, 3, 4)]
    assert len({server.mac for server in topology.servers}) == 4


@pytest.mark.parametrize(
    ("servers", "trunks", "message"),
    [
        ((LabServer("a", 0),), (), "server a: expected one trunk with it at the left end, got 0"),
        (
            (LabServer("a", 0),),
            (Trunk("n1", "a", "s", LINK), Trunk("n2", "a", "s", LINK)),
            "server a: expected one trunk with it at the left end, got 2",
        ),
        ((LabServer("a", 0),), (Trunk("n1", "s", "a", LINK),), "n1: switch: expected one of s, got 'a'"),
        (
            (LabServer("a", 3), LabServer("b", 3)),
            (Trunk("n1", "a", "s", LINK), Trunk("n2", "b", "s", LINK)),
            "a and b both have the number 3",
        ),
        (
            (LabServer("a", 254),),
            (Trunk("a", "a", "s", LINK),),
            "server a: expected number 0 to 253 and 1 or more slots, got 254 and 1",
        ),
        (
            (LabServer("a", 0, 0),),
            (Trunk("a", "a", "s", LINK),),
            "server a: expected number 0 to 253 and 1 or more slots, got 0 and 0",
        ),
        (
            (LabServer("a", 0), LabServer("b", 1)),
            (Trunk("a", "b", "s", LINK), Trunk("x", "a", "s", LINK)),
            "the name 'a' occurs more than once",
        ),
    ],
)
def test_topologies_with_servers_that_cannot_be(servers, trunks, message):
    with pytest.raises(UsageError, match=message):
        Topology((), (LabSwitch("s"),), trunks, servers)


def test_two_uplinks_of_one_name_are_refused():
    switches = tuple(LabSwitch(name) for name in ("a", "b", "c"))
    trunks = (Trunk("b", "b", "a", LINK), Trunk("b", "b", "c", LINK))
    with pytest.raises(UsageError, match="the name 'b' occurs more than once"):
        Topology((), switches, trunks)
