"""Finds the transfers between a parameter server and its worker in the TCP packets of a capture.

A transfer is a maximal run of payload packets of one direction between two runs of the other. Runs below 1 % of the
largest are control messages, which belong to no transfer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from placement.experiments.parameter_server.tcp_packets import Endpoint, TcpPacket

CONTROL_SHARE = 0.01

_HALF_SPACE, _SPACE = 1 << 31, 1 << 32


@dataclass
class _Run:
    """Consecutive payload packets of one direction, by their numbers in the capture."""

    to_server: bool
    first: int
    last: int
    size_bytes: int
    before: _Run | None = None
    after: _Run | None = None
    dropped: bool = False


@dataclass(frozen=True)
class Transfer:
    """A gradient or weights on their way.

    Attributes:
        to_server: whether it is a gradient.
        begin_ns: when its first packet was captured.
        end_ns: when its last packet was; of weights, when the last byte was acknowledged, or, if that is not in the
            capture before the next gradient, when that began.
        size_bytes: payload, including retransmitted bytes.
    """

    to_server: bool
    begin_ns: int
    end_ns: int
    size_bytes: int


def transfers(packets: Sequence[TcpPacket], server: frozenset[Endpoint]) -> list[Transfer]:
    """The transfers in the order of time, by turns in both directions.

    Args:
        packets: between the server and one worker, in the order of time.
        server: the endpoints of the server.
    """
    runs = _without_control_messages(_runs(packets, server))
    found = []
    for run, following in zip(runs, [run.first for run in runs[1:]] + [len(packets)], strict=True):
        end_ns = packets[run.last].at_ns
        if not run.to_server:
            end_ns = _acknowledged_ns(packets, server, run, following)
        found.append(Transfer(run.to_server, packets[run.first].at_ns, end_ns, run.size_bytes))
    return found


def _runs(packets: Sequence[TcpPacket], server: frozenset[Endpoint]) -> list[_Run]:
    runs: list[_Run] = []
    for number, packet in enumerate(packets):
        if not packet.payload_bytes:
            continue
        to_server = packet.destination in server
        if not runs or runs[-1].to_server != to_server:
            runs.append(_Run(to_server, number, number, 0))
        runs[-1].last = number
        runs[-1].size_bytes += packet.payload_bytes
    return runs


def _without_control_messages(runs: list[_Run]) -> list[_Run]:
    """Drop small runs, the smallest first, and join the runs around each.

    So a transfer that many small messages of the other direction interrupt, such as window updates of HTTP/2, is one.
    """
    if not runs:
        return []
    for left, right in pairwise(runs):
        left.after, right.before = right, left
    queue = [(run.size_bytes, run.first, run) for run in runs]
    heapq.heapify(queue)
    largest = max(run.size_bytes for run in runs)
    while queue and queue[0][0] < CONTROL_SHARE * largest:
        size_bytes, _, run = heapq.heappop(queue)
        if run.dropped or size_bytes != run.size_bytes:
            continue
        run.dropped = True
        before, after = run.before, run.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        if before is not None and after is not None:
            _join(before, after)
            largest = max(largest, before.size_bytes)
            heapq.heappush(queue, (before.size_bytes, before.first, before))
    return [run for run in runs if not run.dropped]


def _join(run: _Run, after: _Run) -> None:
    """Make one of two runs of the same direction."""
    run.last, run.size_bytes = after.last, run.size_bytes + after.size_bytes
    run.after, after.dropped = after.after, True
    if run.after is not None:
        run.after.before = run


def _acknowledged_ns(
    packets: Sequence[TcpPacket], server: frozenset[Endpoint], run: _Run, following: int
) -> int:
    """When the last byte of every connection of a run was acknowledged."""
    expected = _ends(packets[run.first : run.last + 1], server)
    end_ns = packets[run.last].at_ns
    for packet in packets[run.first : following + 1]:
        connection = packet.source, packet.destination
        end = expected.get(connection)
        if end is None or packet.acknowledged is None or _is_before(packet.acknowledged, end):
            continue
        del expected[connection]
        end_ns = max(end_ns, packet.at_ns)
        if not expected:
            return end_ns
    # The next gradient shows that the worker has the weights, though the acknowledgement was lost or comes late.
    return packets[following].at_ns if following < len(packets) else end_ns


def _ends(packets: Sequence[TcpPacket], server: frozenset[Endpoint]) -> dict[tuple[Endpoint, Endpoint], int]:
    """For each connection from the server, named as its answers are addressed: the number after its last byte."""
    ends: dict[tuple[Endpoint, Endpoint], int] = {}
    for packet in packets:
        if packet.payload_bytes and packet.destination not in server:
            answers = packet.destination, packet.source
            end = (packet.sequence + packet.payload_bytes) % _SPACE
            if answers not in ends or _is_before(ends[answers], end):
                ends[answers] = end
    return ends


def _is_before(one: int, other: int) -> bool:
    """Compare sequence numbers, which wrap around."""
    return 0 < (other - one) % _SPACE < _HALF_SPACE
