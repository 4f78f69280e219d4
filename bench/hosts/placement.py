"""The hosts on which the ranks of jobs run: as in the lab, half of a job's ranks on each side of the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from bench.hosts.hosts_file import CORE, SWITCH, HostsFile, RemoteHost
from mltcp.core.errors import UsageError
from placement.model import cluster


def sides(hosts: Sequence[RemoteHost]) -> tuple[tuple[RemoteHost, ...], tuple[RemoteHost, ...]]:
    """The first half of the hosts, which is left of the bottleneck, and the rest."""
    half = len(hosts) // 2
    return tuple(hosts[:half]), tuple(hosts[half:])


def two_sided(hosts: Sequence[RemoteHost], ranks_of: Sequence[int]) -> tuple[tuple[RemoteHost, ...], ...]:
    """The host of each rank of each job: the first half of the ranks is on the left, on the hosts with most free slots.

    Raises:
        UsageError: a side has too few slots.
    """
    if min(ranks_of) < 2:
        raise UsageError(f"--ranks: expected 2 or more on hosts, got {min(ranks_of)}")
    free = {host: host.slots for host in hosts}
    first = sum(ranks // 2 for ranks in ranks_of)
    for name, side, needed in zip(
        ("first", "second"), sides(hosts), (first, sum(ranks_of) - first), strict=True
    ):
        slots = sum(host.slots for host in side)
        if needed > slots:
            raise UsageError(
                f"hosts: slots: expected {needed} on the {name} half of the hosts for {len(ranks_of)} jobs "
                f"of {', '.join(map(str, sorted(set(ranks_of))))} ranks, got {slots}"
            )
    left, right = sides(hosts)
    return tuple(
        tuple(_taken(left if rank < ranks // 2 else right, free) for rank in range(ranks))
        for ranks in ranks_of
    )


def _taken(side: Sequence[RemoteHost], free: dict[RemoteHost, int]) -> RemoteHost:
    host = max(side, key=lambda each: free[each])
    free[host] -= 1
    return host


def in_order(hosts: Sequence[RemoteHost], ranks: int) -> tuple[tuple[RemoteHost, int], ...]:
    """The host of each rank, and its slot there: the hosts are filled one after the other.

    Raises:
        UsageError: there are too few slots.
    """
    slots = [(host, slot) for host in hosts for slot in range(host.slots)]
    if not 1 <= ranks <= len(slots):
        raise UsageError(f"--ranks: expected 1 to {len(slots)}, the slots of the hosts, got {ranks}")
    return tuple(slots[:ranks])


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
