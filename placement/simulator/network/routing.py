"""Routes of messages: all shortest ways, one of which a seeded hash chooses switch by switch, as ECMP does.

Hosts do not forward. The hash is of (seed, job's name, source and target worker, connection) and of the switch, so
that switches do not all choose alike; a connection keeps its route. Of several NICs a message leaves by that of its
source's GPU and arrives at that of its target's, GPU i having NIC i mod NICs, wherever a shortest way does so; where
only one of the two can be had it is the target's (PXN, `topologies.rail_optimised`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from hashlib import blake2b

from mltcp.core.errors import UsageError, shown
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob

Route = tuple[int, ...]
"""The numbers of the links on a way, in order; none within a host."""

_Switches = tuple[int | None, ...]
_MASK = (1 << 64) - 1


class RoutingTable:
    """The shortest ways between the hosts of a network.

    Args:
        network: the network.
        down: the links, by number, that have failed.

    Raises:
        UsageError: a failed link that is not there.
    """

    def __init__(self, network: Network, down: Collection[int] = ()) -> None:
        for link in down:
            _check_number(link, len(network.links), "down: link")
        self._network = network
        names = dict.fromkeys(
            [*network.hosts, *(end for link in network.links for end in (link.source, link.target))]
        )
        number = {name: position for position, name in enumerate(names)}
        self._ends = [(number[link.source], number[link.target]) for link in network.links]
        self._out: list[list[int]] = [[] for _ in names]
        self._into: list[list[int]] = [[] for _ in names]
        # Failed NICs keep their numbers: the others do not become those of other GPUs.
        for link, (source, target) in enumerate(self._ends):
            self._out[source].append(link)
            self._into[target].append(link)
        self._down = frozenset(down)
        self._hops: dict[int, dict[int, int]] = {}
        self._nics: dict[tuple[_Switches, _Switches, int, int], list[tuple[int, int]]] = {}
        self._next: dict[tuple[int, int], list[int]] = {}
        self._all: dict[tuple[tuple[int, int], tuple[int, int]], tuple[Route, ...]] = {}

    def routes(
        self, job: NetworkJob, seed: int = 0, otherwise: Sequence[Route] | None = None
    ) -> tuple[Route, ...]:
        """The route of each message of the job, in the order of its steps.

        Args:
            job: the job.
            seed: of the hash.
            otherwise: the routes of messages for which there is no way.

        Raises:
            UsageError: a worker on a host or GPU that is not there, a message of a worker that is not there, or no way
                between two hosts and none in `otherwise`.
        """
        self._check(job)
        gpus = job.gpus
        job_key = int.from_bytes(blake2b(f"{seed} {job.name}".encode(), digest_size=8).digest())
        known: dict[tuple[int, int, int], Route | None] = {}
        found: list[Route] = []
        for step in job.traffic.steps:
            for message in step.messages:
                flow = message.source, message.target, message.connection
                if flow not in known:
                    for worker in flow[:2]:
                        _check_number(worker, len(job.hosts), f"job {shown(job.name)}: message: worker")
                    key = _mixed(job_key ^ _mixed((flow[0] << 40) ^ (flow[1] << 16) ^ flow[2]))
                    source, target = ((job.hosts[worker], gpus[worker]) for worker in flow[:2])
                    known[flow] = self._route(source, target, key)
                    if known[flow] is None and otherwise is None:
                        raise self._no_way(job.name, source[0], target[0])
                way = known[flow]
                found.append(otherwise[len(found)] if way is None and otherwise is not None else way or ())
        return tuple(found)

    def ways(self, job: NetworkJob) -> tuple[tuple[Route, ...], ...]:
        """All routes that each message of the job could have, in the order of its steps; see `routes`."""
        self._check(job)
        places = list(zip(job.hosts, job.gpus, strict=True))
        return tuple(
            self._ways(places[each.source], places[each.target], job.name) for each in job.traffic.messages
        )

    def _check(self, job: NetworkJob) -> None:
        where = f"job {shown(job.name)}"
        if len(job.hosts) != job.traffic.workers or len(job.gpus) != len(job.hosts):
            raise UsageError(
                f"{where}: hosts: expected one for each of {job.traffic.workers} workers, got {len(job.hosts)}"
            )
        for host, gpu in zip(job.hosts, job.gpus, strict=True):
            _check_number(host, len(self._network.hosts), f"{where}: host")
            if job.slots:
                name = shown(self._network.hosts[host])
                _check_number(gpu, self._network.gpus_of(host), f"{where}: GPU of host {name}")

    def _no_way(self, job: str, source: int, target: int) -> UsageError:
        hosts = self._network.hosts
        return UsageError(
            f"job {shown(job)}: route from host {shown(hosts[source])} to {shown(hosts[target])}: "
            "expected links that lead there, got none"
        )

    def _route(self, source: tuple[int, int], target: tuple[int, int], key: int) -> Route | None:
        if source[0] == target[0]:
            return ()
        pairs = self._nic_pairs(*source, *target)
        if not pairs:
            return None
        first, last = pairs[key % len(pairs)]
        if first == last:
            return (first,)
        route, node, end = [first], self._ends[first][1], self._ends[last][0]
        while node != end:
            choices = self._next_links(node, end)
            link = choices[_mixed(key ^ (node * 0x9E3779B97F4A7C15 & _MASK)) % len(choices)]
            route.append(link)
            node = self._ends[link][1]
        return (*route, last)

    def _ways(self, source: tuple[int, int], target: tuple[int, int], job: str) -> tuple[Route, ...]:
        if source[0] == target[0]:
            return ((),)
        if (source, target) not in self._all:
            self._all[source, target] = tuple(
                (first, *between, last) if first != last else (first,)
                for first, last in self._some_nic_pairs(source, target, job)
                for between in (
                    [()] if first == last else self._between(self._ends[first][1], self._ends[last][0])
                )
            )
        return self._all[source, target]

    def _between(self, node: int, end: int) -> list[Route]:
        """All shortest ways from a switch to another one."""
        if node == end:
            return [()]
        return [
            (link, *rest)
            for link in self._next_links(node, end)
            for rest in self._between(self._ends[link][1], end)
        ]

    def _some_nic_pairs(
        self, source: tuple[int, int], target: tuple[int, int], job: str
    ) -> list[tuple[int, int]]:
        """See `_nic_pairs`; raises UsageError if there are none."""
        pairs = self._nic_pairs(*source, *target)
        if not pairs:
            raise self._no_way(job, source[0], target[0])
        return pairs

    def _nic_pairs(self, source: int, source_gpu: int, target: int, target_gpu: int) -> list[tuple[int, int]]:
        """The first and last links of the shortest ways, of the right NICs where there are such ways."""
        out, into = self._out[source], self._into[target]
        direct = [(link, link) for link in out if self._ends[link][1] == target and link not in self._down]
        if direct or not out or not into:
            return direct
        above = tuple(None if link in self._down else self._ends[link][1] for link in out)
        before = tuple(None if link in self._down else self._ends[link][0] for link in into)
        key = above, before, source_gpu % len(out), target_gpu % len(into)
        if key not in self._nics:
            self._nics[key] = self._chosen_nics(*key)
        return [(out[first], into[last]) for first, last in self._nics[key]]

    def _chosen_nics(
        self, above: _Switches, before: _Switches, source_nic: int, target_nic: int
    ) -> list[tuple[int, int]]:
        """The same by the positions of NICs: it is alike for all hosts that are below the same switches."""
        hops = {
            (first, last): self._hops_to(end)[switch]
            for last, end in enumerate(before)
            for first, switch in enumerate(above)
            if end is not None and switch is not None and switch in self._hops_to(end)
        }
        least = min(hops.values(), default=0)
        best = [pair for pair, count in hops.items() if count == least]
        best = [pair for pair in best if pair[1] == target_nic] or best
        return [pair for pair in best if pair[0] == source_nic] or best

    def _next_links(self, node: int, end: int) -> list[int]:
        """The links from a switch to those that are one hop nearer to the end."""
        if (node, end) not in self._next:
            hops = self._hops_to(end)
            self._next[node, end] = [
                link
                for link in self._out[node]
                if link not in self._down and hops.get(self._ends[link][1]) == hops[node] - 1
            ]
        return self._next[node, end]

    def _hops_to(self, end: int) -> dict[int, int]:
        """The hops from each switch to this one; those from which it cannot be reached are left out."""
        if end not in self._hops:
            switches = len(self._network.hosts)
            hops = {} if end < switches else {end: 0}
            waiting = deque(hops)
            while waiting:
                node = waiting.popleft()
                for link in self._into[node]:
                    before = self._ends[link][0]
                    if before >= switches and before not in hops and link not in self._down:
                        hops[before] = hops[node] + 1
                        waiting.append(before)
            self._hops[end] = hops
        return self._hops[end]


def routes(network: Network, job: NetworkJob, seed: int = 0) -> tuple[Route, ...]:
    """The route of each message of one job; of several jobs, `RoutingTable.routes` shares what it has found."""
    return RoutingTable(network).routes(job, seed)


def _mixed(value: int) -> int:
    """The last step of SplitMix64 (Steele et al., OOPSLA 2014): equal bits in give unrelated bits out."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _check_number(number: int, count: int, where: str) -> None:
    if not 0 <= number < count:
        raise UsageError(f"{where}: expected 0 to {count - 1}, got {number}")
