"""Links that fail and come back: which are down after each change, and the routes that follow.

A flow with a link on its way that is down waits. `reroute_ns` after each change ECMP chooses again among the shortest
ways over the links that are up by then, for all flows. Where no way is left, a flow has its route of the whole network,
and waits until that is whole.

Failures are given (`parse_outages`), or drawn: each cable between switches runs for an exponential time with the mean
`mtbf_ns`, and is repaired for one with the mean `mttr_ns`, in both directions, whatever the other cables do.
"""

from __future__ import annotations

import heapq
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, groupby, takewhile, tee
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S, parse_number
from placement.simulator.network.routing import Route, RoutingTable
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob

REROUTE_NS = 100_000_000
"""The default, of the order of what routing protocols take; not a measured value of any network."""

_MOST_S = 1e6
_GIVEN = re.compile(r"(?P<source>.+?)(?P<kind><->|->)(?P<target>.+)@(?P<times>[^@]*)")


@dataclass(frozen=True)
class Outage:
    """A link, by name, that is down from a time on until another; None: for good."""

    link: str
    from_ns: int
    until_ns: int | None = None


@dataclass(frozen=True)
class LinkEvent:
    """A link, by number, that fails or comes back at a time from the beginning of the simulation."""

    at_ns: int
    link: int
    is_up: bool


@dataclass(frozen=True)
class LinkFailures:
    """Which links fail, and when routes follow.

    Attributes:
        outages: that are given.
        mtbf_ns, mttr_ns: means of the times that a cable between switches is up and down; None: none fails by chance.
        reroute_ns: from a change to the routes that follow from it.

    Raises UsageError for times that are not above 0.
    """

    outages: tuple[Outage, ...] = ()
    mtbf_ns: float | None = None
    mttr_ns: float | None = None
    reroute_ns: int = REROUTE_NS

    def __post_init__(self) -> None:
        for name, value in (("mtbf", self.mtbf_ns), ("mttr", self.mttr_ns), ("reroute", self.reroute_ns)):
            if value is not None and value <= 0:
                raise UsageError(f"failures: {name}: expected a time above 0, got {value:g} ns")

    def events(self, network: Network, seed: int) -> Iterator[LinkEvent]:
        """What happens to links, in the order of time; without an end where cables fail by chance.

        Raises UsageError for an outage of a link that is not there.
        """
        numbers = {link.name: number for number, link in enumerate(network.links)}
        given = []
        for outage in self.outages:
            if outage.link not in numbers:
                raise UsageError(f"failures: expected a link of the network, got {shown(outage.link)}")
            given.append(LinkEvent(outage.from_ns, numbers[outage.link], False))
            if outage.until_ns is not None:
                given.append(LinkEvent(outage.until_ns, numbers[outage.link], True))
        drawn = [self._drawn(network, cable, seed) for cable in _cables(network)] if self.mtbf_ns else []
        return heapq.merge(sorted(given, key=_at_ns), *drawn, key=_at_ns)

    def _drawn(self, network: Network, cable: Sequence[int], seed: int) -> Iterator[LinkEvent]:
        assert self.mtbf_ns is not None
        assert self.mttr_ns is not None, "both are given or none"
        draw = random.Random(f"failures {seed} {network.links[cable[0]].name}")
        at_ns = 0.0
        for is_up, mean_ns in cycle(((False, self.mtbf_ns), (True, self.mttr_ns))):
            at_ns += draw.expovariate(1 / mean_ns)
            for link in cable:
                yield LinkEvent(round(at_ns), link, is_up)

    def states(self, network: Network, seed: int) -> Iterator[LinkChange]:
        """The state of the links after each change, and at each time at which routes follow one."""
        events, followed = tee(self.events(network, seed))
        happens = ((event.at_ns, event) for event in events)
        follows: Iterator[tuple[int, LinkEvent | None]] = (
            (event.at_ns + self.reroute_ns, None) for event in followed
        )
        fails: Counter[int] = Counter()
        for at_ns, group in groupby(heapq.merge(happens, follows, key=_first), key=_first):
            changed = [event for _, event in group]
            for event in changed:
                if event is not None:
                    fails[event.link] += -1 if event.is_up else 1
            down = frozenset(link for link, count in fails.items() if count > 0)
            yield LinkChange(at_ns, down, reroutes=None in changed)


NO_FAILURES = LinkFailures()


@dataclass(frozen=True)
class LinkChange:
    """The links that are down from a time on, and whether routes change then, too."""

    at_ns: int
    down: frozenset[int]
    reroutes: bool


@dataclass(frozen=True)
class NetworkChange:
    """A `LinkChange` with the routes of all jobs, message by message, from then on; None: they are as before."""

    at_ns: int
    down: frozenset[int]
    routes: tuple[tuple[Route, ...], ...] | None = None

    def of_jobs(self, numbers: Sequence[int]) -> NetworkChange:
        """The same for some of the jobs."""
        routes = self.routes
        return NetworkChange(
            self.at_ns, self.down, None if routes is None else tuple(routes[number] for number in numbers)
        )


def network_changes(
    failures: LinkFailures, network: Network, jobs: Sequence[NetworkJob], seed: int, until_ns: int
) -> tuple[NetworkChange, ...]:
    """All changes before a time, with the routes of jobs.

    Raises:
        UsageError: as `RoutingTable.routes` for the whole network, or an outage of a link that is not there.
    """
    whole = RoutingTable(network)
    usual = [whole.routes(job, seed) for job in jobs]
    changes = []
    for state in takewhile(lambda each: each.at_ns < until_ns, failures.states(network, seed)):
        routes = None
        if state.reroutes:
            table = RoutingTable(network, state.down)
            routes = tuple(table.routes(job, seed, ways) for job, ways in zip(jobs, usual, strict=True))
        changes.append(NetworkChange(state.at_ns, state.down, routes))
    return tuple(changes)


def parse_outages(text: str) -> tuple[Outage, ...]:
    """The outages of ``A->B@FROM[:UNTIL]``, in seconds; ``A<->B`` stands for both directions, ``A->B#2`` for a lane.

    Raises:
        UsageError: it has another form, or ends before it begins.
    """
    where = f"--fail {shown(text)}"
    found = _GIVEN.fullmatch(text)
    if found is None:
        raise UsageError(f"{where}: expected A->B@FROM[:UNTIL] or A<->B@FROM[:UNTIL], in seconds")
    times_ns = [
        round(parse_number(each, field=where, lowest=0, highest=_MOST_S) * NS_PER_S)
        for each in found["times"].split(":")
    ]
    if len(times_ns) > 2 or times_ns != sorted(set(times_ns)):
        raise UsageError(f"{where}: expected FROM, or FROM:UNTIL with a later end")
    source, (target, mark, lane) = found["source"], found["target"].partition("#")
    ends = [(source, target)] if found["kind"] == "->" else [(source, target), (target, source)]
    return tuple(Outage(f"{one}->{other}{mark}{lane}", *times_ns) for one, other in ends)


# -- what came of it ---------------------------------------------------------------------------------------------------


@dataclass
class OutageLog:
    """Collects outages of links, and those of jobs: times in which some of a job's messages have no way at all.

    Attributes:
        network: whose links fail.
        links: since when each one is down.
        outages: of links, with their end.
        cut_off: of jobs, with their end: job, the first link that is down on its way, from and until.
    """

    network: Network
    links: dict[int, int] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    cut_off: list[tuple[str, Outage]] = field(default_factory=list)
    _waiting: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(
        self,
        at_ns: int,
        down: frozenset[int],
        ways: Mapping[str, Sequence[Route]],
        reroutes: bool,
    ) -> None:
        """Take note of links that are down now, and of the present routes of the jobs that run.

        A job counts as cut off when its routes have followed the change and still use a link that is down.
        """
        for link in sorted(self.links.keys() - down):
            self.outages.append(Outage(self.network.links[link].name, self.links.pop(link), at_ns))
        for link in down:
            self.links.setdefault(link, at_ns)
        for name in list(self._waiting):
            if name not in ways or not any(down.intersection(way) for way in ways[name]):
                self._end(name, at_ns)
        for name in ways if reroutes else ():
            broken = next((link for way in ways[name] for link in way if link in down), None)
            if broken is not None:
                self._waiting.setdefault(name, (broken, at_ns))

    def _end(self, job: str, at_ns: int | None) -> None:
        link, from_ns = self._waiting.pop(job)
        self.cut_off.append((job, Outage(self.network.links[link].name, from_ns, at_ns)))

    def document(self) -> dict[str, Any]:
        """``outages`` and ``cut_off``, as JSON has them; what goes on at the end has no end."""
        open_ends = [Outage(self.network.links[link].name, since) for link, since in self.links.items()]
        for job in list(self._waiting):
            self._end(job, None)
        return {
            "outages": [_times(each) for each in sorted([*self.outages, *open_ends], key=_of_outage)],
            "cut_off": [{"job": job, **_times(each)} for job, each in self.cut_off],
        }


def _times(outage: Outage) -> dict[str, Any]:
    until_s = None if outage.until_ns is None else outage.until_ns / NS_PER_S
    return {"link": outage.link, "from_s": outage.from_ns / NS_PER_S, "until_s": until_s}


def _of_outage(outage: Outage) -> tuple[int, str]:
    return outage.from_ns, outage.link


def _at_ns(event: LinkEvent) -> int:
    return event.at_ns


def _first(pair: tuple[int, LinkEvent | None]) -> int:
    return pair[0]


def _cables(network: Network) -> list[list[int]]:
    """The links between switches, those of both directions together."""
    hosts = set(network.hosts)
    found: dict[tuple[frozenset[str], int], list[int]] = {}
    for number, link in enumerate(network.links):
        if hosts.isdisjoint((link.source, link.target)):
            found.setdefault((frozenset((link.source, link.target)), link.lane), []).append(number)
    return list(found.values())
