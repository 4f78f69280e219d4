"""Which messages of an iteration make up a burst, by which F goes: what a host sends for a job between two silences.

The twin of what the kernel learns from a job's last iteration (mltcp/control/iteration.py), where nothing else sends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.control.iteration import parting_silence_ns
from placement.simulator.network.alone_demand import sent_alone
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob


@dataclass(frozen=True)
class BurstPlace:
    """Where a message is in what its connection sends in a burst.

    Attributes:
        size_bytes: of the burst.
        before_bytes: of them, those before it.
        time_ns: for which the host sends the burst alone.
    """

    size_bytes: float
    before_bytes: float
    time_ns: float


def burst_places(job: NetworkJob, network: Network, ways: Sequence[Sequence[int]]) -> list[BurstPlace]:
    """The place of each message of an iteration, whose ways are in the order of the steps as well.

    Under a law by the whole iteration, that is one burst.
    """
    nics = [network.links[way[0]].rate_bps for way in ways if way]
    bursts = {whole: _bursts(job, min(nics), whole) if nics else {} for whole in (False, True)}
    nothing = _Burst(0)
    found: dict[tuple[int, int, int, _Burst], list[tuple[float, int, float]]] = defaultdict(list)
    number = 0
    for step_number, step in enumerate(job.traffic.steps):
        for message in step.messages:
            host = job.hosts[message.source]
            of_host = bursts[job.law_of(message.source).whole]
            begin_ns, burst = of_host.get((step_number, host), (0.0, nothing))
            key = (message.source, message.target, message.connection, burst)
            found[key].append((begin_ns, number, message.size_bytes))
            number += 1
    places: dict[int, BurstPlace] = {}
    for (*_, burst), messages in found.items():
        size, before = sum(each[2] for each in messages), 0.0
        for _, place, own in sorted(messages):
            places[place] = BurstPlace(size, before, burst.time_ns)
            before += own
    return [places[place] for place in range(number)]


@dataclass(eq=False)
class _Burst:
    """Of a host; `time_ns` is that for which it sends it."""

    time_ns: float


def _bursts(job: NetworkJob, host_bps: float, whole: bool) -> dict[tuple[int, int], tuple[float, _Burst]]:
    """Of each step and host: when it begins to send, and its burst; all that it sends is one where they are `whole`."""
    sent, end_ns = sent_alone(job.traffic, job.hosts, host_bps)
    found: dict[tuple[int, int], tuple[float, _Burst]] = {}
    for host, unsorted in sent.items():
        spans = sorted(unsorted, key=lambda each: each.begin_ns)
        silences, until_ns = [], spans[0].begin_ns
        for span in spans:
            silences.append(max(0.0, span.begin_ns - until_ns))
            until_ns = max(until_ns, span.end_ns)
        longest_ns = max(*silences, spans[0].begin_ns + max(0.0, end_ns - until_ns))
        least_ns = math.inf if whole else parting_silence_ns(longest_ns)
        burst = _Burst(0.0)
        for span, silence in zip(spans, silences, strict=True):
            if silence >= least_ns:
                burst = _Burst(0.0)
            burst.time_ns += span.end_ns - span.begin_ns
            found[span.step, host] = span.begin_ns, burst
    return found
