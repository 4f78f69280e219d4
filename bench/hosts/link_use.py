"""The use of the link between two groups of hosts, from what each host's agent sampled of its own connections."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.hosts.messages import Measurement
from bench.lab.bottleneck.link_use import DirectionUse, LinkUse

BIN_NS = 20_000_000
_FRAME_BYTES = 14  # the Ethernet header
_HEADER_BYTES = 52  # of IPv4 and of TCP with time stamps


@dataclass(frozen=True)
class SideMeasurement:
    """The measurement of a host on one side, and how far its CLOCK_MONOTONIC is ahead of the launcher's."""

    measurement: Measurement
    ahead_s: float


def link_use(
    left: Sequence[SideMeasurement],
    right: Sequence[SideMeasurement],
    jobs: Sequence[int],
    *,
    epoch_ns: int,
    duration_ns: int,
    rate_bps: int,
    mtu: int,
) -> LinkUse:
    """The use of the link in both directions.

    Args:
        left, right: the hosts of each side.
        jobs: the index of each job, by the number under which the agents counted it.
        epoch_ns, duration_ns: of the measurement, on the launcher's CLOCK_MONOTONIC.
        rate_bps: of the link.
        mtu: of the hosts; acknowledged bytes count with the headers of full frames.
    """
    bins = duration_ns // BIN_NS + 1
    scale = (mtu + _FRAME_BYTES) / (mtu - _HEADER_BYTES)
    return LinkUse(
        epoch_ns,
        duration_ns,
        BIN_NS,
        tuple(
            _direction(names, side, jobs, epoch_ns, bins, scale, rate_bps)
            for names, side in ((("left", "right"), left), (("right", "left"), right))
        ),
    )


def _direction(
    names: tuple[str, str],
    side: Sequence[SideMeasurement],
    jobs: Sequence[int],
    epoch_ns: int,
    bins: int,
    scale: float,
    rate_bps: int,
) -> DirectionUse:
    filled = {index: [0.0] * bins for index in jobs}
    for each in side:
        for position, number in enumerate(each.measurement.jobs):
            samples = [
                (at_ns - round(each.ahead_s * 1e9) - epoch_ns, counts[position] * scale)
                for at_ns, counts in each.measurement.samples
            ]
            spread(samples, filled[jobs[number]])
    by_job = {index: array("Q", map(round, values)) for index, values in filled.items()}
    measurements = [each.measurement for each in side]
    return DirectionUse(
        trunk="hosts",
        source=names[0],
        target=names[1],
        rate_bps=rate_bps,
        bytes_by_job=by_job,
        packets=sum(each.packets for each in measurements),
        bytes=sum(map(sum, by_job.values())),
        unbinned_bytes=0,
        # A packet that arrives marked was marked on its way: in the other direction.
        marks=sum(each.ce_packets for each in measurements),
        drops=sum(each.drops for each in measurements),
    )


def spread(samples: Sequence[tuple[int, float]], bins: list[float]) -> None:
    """Add the bytes between successive samples to the bins that they span, evenly; times are from the first bin on."""
    for (begin_ns, before), (end_ns, after) in pairwise(samples):
        if after <= before or end_ns <= begin_ns:
            continue
        density = (after - before) / (end_ns - begin_ns)
        at_ns = begin_ns
        while at_ns < end_ns:
            to_ns = min(end_ns, (at_ns // BIN_NS + 1) * BIN_NS)
            position = min(max(at_ns // BIN_NS, 0), len(bins) - 1)
            bins[position] += density * (to_ns - at_ns)
            at_ns = to_ns
