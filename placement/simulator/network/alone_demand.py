"""The demand profile of a job's traffic where nothing else sends: what schedulers and Cassini know of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush

from mltcp.core.demand import Demand, Phase
from placement.simulator.network.traffic import IterationStep, Traffic, followers

PARTS = 72
"""Silences of less than so large a part of an iteration do not end a phase: 5 degrees on its circle."""


@dataclass(frozen=True)
class SentAlone:
    """When a host sends the bytes of a step, by number, where nothing else sends."""

    step: int
    begin_ns: float
    end_ns: float
    size_bytes: float


def alone_demand(traffic: Traffic, hosts: Sequence[int], host_bps: float) -> Demand:
    """The phases of an iteration on the host that sends most, if only hosts' rates limit it.

    A step sends when those before it have ended, it has computed, and its hosts have sent and received what steps that
    were ready earlier had for them. It is as long as its busiest host needs. Workers of one host take no time for what
    they send each other.

    Args:
        traffic: of an iteration.
        hosts: of each worker.
        host_bps: at which a host sends, and receives.
    """
    sent, end_ns = sent_alone(traffic, hosts, host_bps)
    busiest = max(sent.values(), key=lambda each: sum(span.size_bytes for span in each), default=[])
    return Demand(_phases(busiest, end_ns))


def sent_alone(
    traffic: Traffic, hosts: Sequence[int], host_bps: float
) -> tuple[dict[int, list[SentAlone]], float]:
    """What each host sends when, as in `alone_demand`, and when the iteration ends."""
    free: dict[tuple[int, bool], float] = defaultdict(float)
    sent: dict[int, list[SentAlone]] = defaultdict(list)
    ends_ns = 0.0
    for number, ready_ns, ended in _in_time(traffic):
        end_ns = ready_ns
        for (host, sends), size_bytes in _of_hosts(traffic.steps[number], hosts).items():
            begin_ns = max(ready_ns, free[host, sends])
            free[host, sends] = begin_ns + size_bytes * 8e9 / host_bps
            end_ns = max(end_ns, free[host, sends])
            if sends:
                sent[host].append(SentAlone(number, begin_ns, free[host, sends], size_bytes))
        ended(end_ns)
        ends_ns = max(ends_ns, end_ns)
    return sent, ends_ns


def _in_time(traffic: Traffic) -> Iterator[tuple[int, float, Callable[[float], None]]]:
    """The steps by number, in the order in which they are ready to send, when that is, and what to call at the end."""
    steps = traffic.steps
    follow = followers("", steps)
    waits = [len(step.after) for step in steps]
    ready_ns = [float(step.compute_ns) for step in steps]
    due = [(ready_ns[number], number) for number in range(len(steps)) if not waits[number]]
    heapify(due)

    def ended(number: int, end_ns: float) -> None:
        for each in follow[number]:
            waits[each] -= 1
            ready_ns[each] = max(ready_ns[each], end_ns + steps[each].compute_ns)
            if not waits[each]:
                heappush(due, (ready_ns[each], each))

    while due:
        at_ns, number = heappop(due)
        yield number, at_ns, partial(ended, number)


def _of_hosts(step: IterationStep, hosts: Sequence[int]) -> dict[tuple[int, bool], float]:
    """The bytes that each host sends (True) and receives (False) in a step."""
    found: dict[tuple[int, bool], float] = defaultdict(float)
    for message in step.messages:
        source, target = hosts[message.source], hosts[message.target]
        if source != target and message.size_bytes:
            found[source, True] += message.size_bytes
            found[target, False] += message.size_bytes
    return found


def _phases(spans: Sequence[SentAlone], end_ns: float) -> tuple[Phase, ...]:
    joined: list[SentAlone] = []
    for burst in sorted(spans, key=lambda each: each.begin_ns):
        if joined and burst.begin_ns - joined[-1].end_ns < end_ns / PARTS:
            last = joined.pop()
            burst = SentAlone(last.step, last.begin_ns, burst.end_ns, last.size_bytes + burst.size_bytes)
        joined.append(burst)
    phases, at_ns = [], 0
    for burst in joined:
        begin_ns = round(burst.begin_ns)
        last_ns = max(round(burst.end_ns), begin_ns + 1)
        if begin_ns > at_ns:
            phases.append(Phase(begin_ns - at_ns, 0))
        phases.append(Phase(last_ns - begin_ns, round(burst.size_bytes * 8e9 / (last_ns - begin_ns))))
        at_ns = last_ns
    if (rest_ns := round(end_ns) - at_ns) > 0 or not phases:
        phases.append(Phase(max(rest_ns, 1), 0))
    return tuple(phases)
