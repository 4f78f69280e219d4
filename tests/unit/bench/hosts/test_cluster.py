"""Hosts as the cluster of schedulers, and as the network of the placement service."""

from fractions import Fraction

import pytest

from bench.compare.coordination import cluster_network
from bench.compare.trace.hosts import servers_of, slots_of
from bench.hosts.hosts_file import HostsFile, RemoteHost
from bench.hosts.placement import cluster_of
from mltcp.core.errors import UsageError

GBIT = 10**9


def hosts(*switches):
    return tuple(
        RemoteHost(f"h{number}", f"10.0.0.{number}", "eth0", slots=number + 1, switch=switch)
        for number, switch in enumerate(switches)
    )


def test_hosts_that_name_no_switch_are_on_one():
    cluster = cluster_of(HostsFile(hosts("", "")), GBIT)
    assert [(link.name, link.speed) for link in cluster.links] == [("h0", 1), ("h1", 1)]
    assert cluster.links_between([0, 1]) == (0, 1)
    network = cluster_network(cluster, GBIT)
    assert network.slots == (("h0.0", "h0"), ("h1.0", "h1"), ("h1.1", "h1"))
    assert network.uplinks == (("h0", "switch", GBIT), ("h1", "switch", GBIT))


def test_several_switches_are_joined_by_their_uplinks():
    file = HostsFile(hosts("x", "y", "x"), uplinks_bps={"x": 2 * GBIT, "y": GBIT // 2})
    cluster = cluster_of(file, GBIT)
    speeds = {link.name: link.speed for link in cluster.links}
    assert speeds == {"h0": 1, "h1": 1, "h2": 1, "x": 2, "y": Fraction(1, 2)}
    # Those of a switch are together, so that a job that fits there is placed there first.
    assert [server.name for server in cluster.servers] == ["h0", "h2", "h1"]
    assert [cluster.links[link].name for link in cluster.links_between([0, 1])] == ["h0", "h2"]
    assert [cluster.links[link].name for link in cluster.links_between([0, 2])] == ["h0", "h1", "x", "y"]
    uplinks = cluster_network(cluster, GBIT).uplinks
    assert uplinks[3:] == (("x", "core", 2 * GBIT), ("y", "core", GBIT // 2))
    assert servers_of(cluster, (0, 2, 5)) == ("h0", "h2", "h1")
    assert slots_of(cluster, (0, 2, 5)) == (0, 1, 1)


def test_a_switch_that_has_the_name_of_a_host_is_refused():
    file = HostsFile(hosts("h1", "y"), uplinks_bps={"h1": GBIT, "y": GBIT})
    with pytest.raises(UsageError, match="the name 'h1' is used more than once"):
        cluster_of(file, GBIT)
