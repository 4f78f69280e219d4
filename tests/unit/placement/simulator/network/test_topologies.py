"""Networks by name and from documents: their sizes, their capacities, and what is refused."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Server, Switch
from placement.simulator.network.topologies import (
    MOST_HOSTS,
    PortSettings,
    leaf_spine,
    load_network,
    network_from_document,
    network_named,
    network_of_cluster,
    network_of_tiers,
)
from placement.simulator.network.topology import ClassQueues, Marking, Network, NetworkLink, Pause


def capacity_bps(network, below, is_up=True):
    """Of all links from (or to) nodes whose names begin so to (or from) nodes whose names do not."""
    ends = [(link.source, link.target) if is_up else (link.target, link.source) for link in network.links]
    return sum(
        link.rate_bps
        for link, (source, target) in zip(network.links, ends, strict=True)
        if source.startswith(below) and not target.startswith(below)
    )


@pytest.mark.parametrize(
    ("name", "hosts", "cables", "switches"),
    [
        ("dumbbell:2", 4, 5, 2),
        ("two-tier:12x2:2:1", 24, 36, 13),
        ("leaf-spine:32x64:4:1", 2048, 2048 + 32 * 16, 48),
        ("leaf-spine:32x8:4:1,gpus=8,nics=8", 256, 2048 + 32 * 16, 48),
        ("leaf-spine:4x3:1:1,spines=2", 12, 20, 6),
        ("fat-tree:4", 16, 48, 20),
        ("rail:1x4,gpus=8", 4, 32, 8),
        ("rail:2x4:2:1,gpus=8", 8, 64 + 2 * 8 * 2, 18),
        ("thesis", 24, 48, 13),
    ],
)
def test_a_name_has_its_size(name, hosts, cables, switches):
    network = network_named(name)
    names = {link.source for link in network.links}
    assert (len(network.hosts), len(network.links), len(names) - hosts) == (hosts, 2 * cables, switches)


@given(
    st.sampled_from(["leaf-spine", "two-tier", "fat-tree"]),
    *(st.integers(1, 5) for _ in range(4)),
    st.fractions(min_value=1, max_value=8, max_denominator=4),
)
@settings(max_examples=30, deadline=None)
def test_uplinks_carry_what_the_over_subscription_says(kind, pods, leaves, hosts, nics, over):
    size = f"{pods}x{leaves}x{hosts}" if kind == "fat-tree" else f"{leaves}x{hosts}"
    network = network_named(f"{kind}:{size}:{float(over)!r:.9}:1,nics={nics},rate=10gbit")
    offered = len(network.hosts) * nics * 10e9
    for is_up in (True, False):
        assert capacity_bps(network, "h", is_up) == pytest.approx(offered)
        # To the hosts, and up.
        assert capacity_bps(network, "leaf", is_up) == pytest.approx(
            offered + offered / float(over), rel=1e-6
        )
        if kind == "fat-tree":
            assert capacity_bps(network, "core", is_up) == pytest.approx(offered / float(over), rel=1e-6)


def test_the_network_of_the_thesis_is_2_to_1_at_the_leaves_only():
    network = network_named("thesis")
    assert {link.rate_bps for link in network.links} == {50e9}
    assert capacity_bps(network, "core") == 12 * 50e9 == capacity_bps(network, "h") / 2


def test_the_keys_of_a_name_reach_the_switches_and_not_the_nics():
    network = network_named("dumbbell:1,rate=1gbit,delay_us=2.5,buffer=300kb,ecn=40kb,pfc=200kb-100kb,gpus=4")
    up, down = (link for link in network.links if "h0" in (link.source, link.target))
    assert up == NetworkLink("h0", "left", 1e9, 2500)
    assert down == NetworkLink("left", "h0", 1e9, 2500, 300e3, Marking(40e3, 40e3), Pause(200e3, 100e3))
    assert network.gpus == (4, 4)
    assert network_named("dumbbell:1,ecn=1kb-2kb-0.5").links[1].marking == Marking(1e3, 2e3, 0.5)
    assert network_named("dumbbell:1,ecn=off").links[1].marking is None
    strict, weighted = (network_named(f"dumbbell:1,classes={text}") for text in ("strict", "8:4:2:1:1:1:1:1"))
    assert {link.classes for link in strict.links} == {ClassQueues()}
    assert {link.classes for link in weighted.links} == {ClassQueues((8, 4, 2, 1, 1, 1, 1, 1))}


def test_a_cluster_is_the_two_tier_network():
    switches = Switch("core"), *(Switch(f"leaf{rack}", "core") for rack in range(3))
    servers = tuple(Server(f"h{number}", (), f"leaf{number // 2}") for number in range(6))
    servers = tuple(Server(each.name, Cluster.star(1, 4).servers[0].gpus, each.switch) for each in servers)
    drawn = network_of_cluster(Cluster(servers, switches), PortSettings(rate_bps=25e9))
    named = leaf_spine(3, 2, over=2, spines=1, ports=PortSettings(rate_bps=25e9, gpus=4))
    renamed = {link.name.replace("spine0", "core"): link.rate_bps for link in named.links}
    assert {link.name: link.rate_bps for link in drawn.links} == renamed
    assert (drawn.hosts, drawn.gpus) == (named.hosts, named.gpus)


def test_documents_of_the_service_and_graphs(tmp_path):
    service = {
        "servers": [{"name": name, "nic_bps": 10**9, "switch": "s", "gpus": 2} for name in "ab"],
        "links": [{"switch": "s", "above": "t", "capacity_bps": 10**10}],
    }
    network = network_from_document(service)
    assert [link.name for link in network.links] == ["a->s", "s->a", "b->s", "s->b", "s->t", "t->s"]
    graph = {
        "hosts": ["a", {"name": "b", "gpus": 2}],
        "links": [
            {
                "source": "a",
                "target": "s",
                "rate_bps": 1e9,
                "both": True,
                "marking": {"lowest_bytes": 1, "highest_bytes": 2},
                "classes": {"weights": [1] * 8},
            },
            {"source": "b", "target": "s", "rate_bps": 2e9, "lane": 1, "buffer_bytes": 100},
        ],
    }
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    network = load_network(tmp_path / "graph.json")
    assert [link.name for link in network.links] == ["a->s", "s->a", "b->s#1"]
    assert network.gpus == (1, 2)
    assert network.links[1].marking == Marking(1, 2)
    assert network.links[1].classes == ClassQueues((1,) * 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ring:4", "topology: expected KIND"),
        ("leaf-spine:4", "topology: leaf-spine: size: expected 2 numbers"),
        ("leaf-spine:0x4", "topology: leaf-spine: size"),
        ("leaf-spine:4x4:0:1", "topology: over-subscription"),
        ("leaf-spine:4x4,rate=fast", "topology: rate"),
        ("leaf-spine:4x4,rate=0gbit", "topology: rate"),
        ("leaf-spine:4x4,colour=red", "colour=red"),
        ("leaf-spine:4x4,aggs=2", "aggs=2"),
        ("leaf-spine:4x4,ecn=1kb-2kb", "topology: ecn"),
        ("dumbbell:1,pfc=1kb-2kb", "pause: stop_bytes: expected a number between 2000 and"),
        ("fat-tree:3", "expected an even K, got 3"),
        ("thesis:3:1", "topology: thesis"),
        (f"two-tier:2x{MOST_HOSTS}", f"at most {MOST_HOSTS} hosts"),
    ],
)
def test_a_wrong_name_is_refused(name, expected):
    with pytest.raises(UsageError) as error:
        network_named(name)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rate_bps": 0}, "link a->s: rate_bps: expected a number between 1 and 1e+15, got 0"),
        ({"rate_bps": None}, "link a->s: rate_bps"),
        ({"rate_bps": float("nan")}, "link a->s: rate_bps"),
        ({"delay_ns": -1}, "link a->s: delay_ns"),
        ({"buffer_bytes": 0}, "link a->s: buffer_bytes"),
        ({"target": "a"}, "link a->a: expected two different ends"),
        ({"target": ""}, "links[0].target"),
        ({"speed": 3}, "links[0].speed: unknown field"),
        ({"marking": {"lowest_bytes": 2, "highest_bytes": 1}}, "marking: highest_bytes"),
        ({"marking": {"lowest": 2}}, "links[0]: unknown or missing field"),
        ({"pause": 4}, "links[0].pause"),
        ({"classes": {"weights": [1, 2]}}, "class queues: weights: expected 8"),
        ({"classes": {"weight": []}}, "links[0]: unknown or missing field"),
    ],
)
def test_a_wrong_link_is_refused_with_its_field(change, expected):
    link = {"source": "a", "target": "s", "rate_bps": 1e9} | change
    with pytest.raises(UsageError) as error:
        network_from_document({"hosts": ["a"], "links": [link]})
    assert str(error.value).startswith(expected)


def test_a_network_has_each_name_once():
    link = NetworkLink("a", "s", 1e9)
    with pytest.raises(UsageError, match="host 'a': expected once"):
        Network(("a", "a"), (link,))
    with pytest.raises(UsageError, match="link 'a->s': expected once"):
        Network(("a",), (link, link))
    with pytest.raises(UsageError, match="hosts: expected one or more"):
        Network((), (link,))


def test_hosts_below_named_switches_are_a_tree_of_parallel_cables():
    above = {
        f"h{pod}{leaf}{host}": (f"p{pod}/s{leaf}", f"p{pod}", "core")
        for pod in range(2)
        for leaf in range(3)
        for host in range(4)
    }
    network = network_of_tiers(above, 2, PortSettings(rate_bps=10e9, gpus=8))
    assert len(network.hosts) == 24
    assert set(network.gpus) == {8}
    by_ends = Counter((link.source, link.target) for link in network.links)
    assert by_ends["h000", "p0/s0"] == by_ends["p0/s0", "h000"] == 1
    assert by_ends["p0/s0", "p0"] == by_ends["p0", "p0/s0"] == 2
    assert by_ends["p0", "core"] == by_ends["core", "p0"] == 6
    assert {link.rate_bps for link in network.links} == {10e9}
    odd = network_of_tiers({f"h{host}": ("s", "core") for host in range(3)}, 2, PortSettings(rate_bps=10e9))
    assert [link.rate_bps for link in odd.links if link.source == "s" and link.target == "core"] == [
        7.5e9
    ] * 2
    with pytest.raises(UsageError, match="switch 's': expected below p0 only, got p1"):
        network_of_tiers({"a": ("s", "p0"), "b": ("s", "p1")})
