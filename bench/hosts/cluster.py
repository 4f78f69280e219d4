"""Real hosts as a cluster for schedulers: slots are GPUs, below the switches that the hosts file names."""

from __future__ import annotations

from fractions import Fraction

from bench.hosts.hosts_file import CORE, SWITCH, HostsFile
from placement.model import cluster


def cluster_of(hosts: HostsFile, rate_bps: int) -> cluster.Cluster:
    """The cluster of the hosts, in the order of the file, but those of a switch together, as in racks.

    Args:
        hosts: each on its switch; several switches are joined by their uplinks.
        rate_bps: of each host's link, whose speed is 1.

    Raises:
        UsageError: a switch has the name of a host.
    """
    names = list(dict.fromkeys(host.switch or SWITCH for host in hosts.hosts))
    servers = tuple(
        cluster.Server(host.name, (cluster.Gpu(),) * host.slots, name)
        for name in names
        for host in hosts.hosts
        if (host.switch or SWITCH) == name
    )
    if len(names) == 1:
        return cluster.Cluster(servers, tuple(cluster.Switch(name) for name in names))
    uplinks = tuple(cluster.Switch(name, CORE, Fraction(hosts.uplinks_bps[name], rate_bps)) for name in names)
    return cluster.Cluster(servers, (*uplinks, cluster.Switch(CORE)))
