"""Routes: shortest, chosen by a seeded hash, by the right NICs, and around links that have failed."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.patterns import IterationPlan, all_to_all, ring_all_reduce
from placement.simulator.network.routing import RoutingTable, routes
from placement.simulator.network.topologies import network_named
from placement.simulator.network.topology import Network, NetworkLink
from placement.simulator.network.traffic import NetworkJob

LAW = NetworkLaw(Control.DCQCN)


def job_of(hosts, rounds=all_to_all, connections=1, name="job", slots=()):
    plan = IterationPlan(len(hosts), None, connections)
    plan.collective(rounds(range(len(hosts)), 1e6))
    return NetworkJob(name, plan.traffic(), tuple(hosts), LAW, 1, slots=slots)


def names(network, route):
    return [network.links[link].name for link in route]


@given(
    st.sampled_from(
        [
            "dumbbell:3",
            "two-tier:3x2",
            "leaf-spine:3x2",
            "fat-tree:4",
            "thesis",
            "rail:2x3:2:1,gpus=2",
            "leaf-spine:2x2,nics=3,gpus=3",
        ]
    ),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_routes_connect_and_are_shortest(name, data):
    network = network_named(name)
    hosts = data.draw(st.lists(st.integers(0, len(network.hosts) - 1), min_size=2, max_size=6))
    job = job_of(hosts)
    seed = data.draw(st.integers(0, 5))
    found = routes(network, job, seed)
    for message, route in zip(job.traffic.messages, found, strict=True):
        source, target = (network.hosts[job.hosts[worker]] for worker in (message.source, message.target))
        links = [network.links[link] for link in route]
        ends = [source, *(link.target for link in links)]
        assert [link.source for link in links] == ends[:-1]
        assert ends[-1] == target
        assert len(route) == shortest(network, source, target)
        assert not set(ends[1:-1]) & set(network.hosts)
    assert routes(network, job, seed) == found


def shortest(network, source, target):
    """The number of links by a search of its own, breadth first, over switches only."""
    length, reached = 0, {source}
    while target not in reached:
        length += 1
        reached |= {
            link.target
            for link in network.links
            if link.source in reached and (link.source not in network.hosts or link.source == source)
        }
    return length


def test_ecmp_spreads_flows_evenly_and_by_job():
    network = network_named("leaf-spine:2x64:4:1")
    ring = [host for pair in zip(range(64), range(64, 128), strict=True) for host in pair]
    spines = Counter()
    for number in range(20):
        for route in routes(network, job_of(ring, ring_all_reduce, name=f"job{number}")):
            spines[network.links[route[1]].target] += 1
    # 2,560 flows on 16 spines: 160 each, with a standard deviation of 12.
    assert len(spines) == 16
    assert all(160 - 60 < count < 160 + 60 for count in spines.values())


def test_connections_and_seeds_have_ways_of_their_own_and_iterations_have_not():
    network = network_named("leaf-spine:2x1:1:1,spines=16")
    found = routes(network, job_of([0, 1], ring_all_reduce, connections=16))
    assert 6 < len({route[1] for route in found[::2]}) <= 16
    assert len({routes(network, job_of([0, 1]), seed) for seed in range(20)}) > 5
    assert routes(network, job_of([0, 1], name="another")) != routes(network, job_of([0, 1]), 0)


def test_workers_of_one_host_use_no_link():
    assert routes(network_named("thesis"), job_of([3, 3])) == ((), ())


def test_rails_need_no_spine_within_a_pod_and_the_message_arrives_at_its_gpu():
    network = network_named("rail:2x2:1:1,gpus=4")
    job = job_of([0, 1, 2], slots=(1, 3, 2))
    found = {
        (message.source, message.target): names(network, route)
        for message, route in zip(job.traffic.messages, routes(network, job), strict=True)
    }
    assert found[0, 1] == ["h0->rail0.3", "rail0.3->h1"]
    assert found[1, 0] == ["h1->rail0.1", "rail0.1->h0"]
    assert (found[0, 2][0], found[0, 2][-1], len(found[0, 2])) == ("h0->rail0.1", "rail1.2->h2", 4)


def test_a_gpu_sends_by_its_own_nic():
    network = network_named("leaf-spine:2x1,gpus=4,nics=2")
    job = job_of([0] * 4 + [1] * 4)
    for message, route in zip(job.traffic.messages, routes(network, job), strict=True):
        if route:
            assert [network.links[link].lane for link in route[:: len(route) - 1]] == [
                message.source % 2,
                message.target % 2,
            ]


def test_other_routes_are_those_for_which_there_is_no_way():
    network = network_named("leaf-spine:2x1:1:1,spines=2")
    job = job_of([0, 1], connections=8)
    number = {link.name: position for position, link in enumerate(network.links)}
    usual = routes(network, job)
    cable = number["leaf0->spine0"], number["spine0->leaf0"]
    assert any(set(cable) & set(route) for route in usual)
    assert not any(set(cable) & set(route) for route in RoutingTable(network, cable).routes(job))
    nic = [number["h0->leaf0"]]
    with pytest.raises(UsageError, match="job 'job': route from host 'h0' to 'h1'"):
        RoutingTable(network, nic).routes(job)
    assert RoutingTable(network, nic).routes(job, otherwise=usual) == usual


def test_a_failed_nic_leaves_the_others_to_their_gpus():
    network = network_named("rail:1x2,gpus=4")
    down = [link for link, each in enumerate(network.links) if "rail0.0" in each.name]
    (route, _) = RoutingTable(network, down).routes(job_of([0, 1], slots=(2, 2)))
    assert names(network, route) == ["h0->rail0.2", "rail0.2->h1"]


def test_hosts_that_are_connected_directly():
    network = Network(("a", "b"), (NetworkLink("a", "b", 1e9), NetworkLink("b", "a", 1e9)))
    assert routes(network, job_of([0, 1])) == ((0,), (1,))


@pytest.mark.parametrize(
    ("hosts", "slots", "expected"),
    [
        ([0, 9], (), "job 'job': host: expected 0 to 3, got 9"),
        ([0, -1], (), "job 'job': host: expected 0 to 3, got -1"),
        ([0, 1], (0, 2), "job 'job': GPU of host 'h1': expected 0 to 0, got 2"),
        ([0, 1], (0,), "job 'job': hosts: expected one for each of 2 workers, got 2"),
    ],
)
def test_a_job_on_gpus_that_are_not_there_is_refused(hosts, slots, expected):
    with pytest.raises(UsageError) as error:
        routes(network_named("dumbbell:2"), job_of(hosts, slots=slots))
    assert str(error.value) == expected


def test_a_route_that_ends_is_refused():
    links = NetworkLink("a", "s", 1e9), NetworkLink("s", "a", 1e9), NetworkLink("b", "t", 1e9)
    with pytest.raises(UsageError) as error:
        routes(Network(("a", "b"), links), job_of([0, 1]))
    assert str(error.value) == (
        "job 'job': route from host 'a' to 'b': expected links that lead there, got none"
    )
    network = network_named("dumbbell:1")
    with pytest.raises(UsageError, match="down: link: expected 0 to 5, got 6"):
        RoutingTable(network, [6])
