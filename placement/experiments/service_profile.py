"""Service times from a packet capture of one worker that trains with one parameter server.

Source: Lin et al. (MASCOTS 2018), Section III-A: transmission times directly, processing times from the end of a
transmission to the beginning of the next, averaged over up to 200 cycles. The capture is best taken on the server's
host, where both links end.
"""

from __future__ import annotations

import heapq
import statistics
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.cassini.ip_packets import IpPacket, IpPackets, address_text
from placement.model.service_times import ServiceTimes, service_document

FEWEST_CYCLES = 3
MOST_CYCLES = 200
WARM_UP_CYCLES = 5

CONTROL_SHARE = 0.01
"""Runs of packets below 1 % of the largest are control messages, which belong to no transfer."""

_TCP = 6
_SYN, _ACK = 0x02, 0x10
_HALF_SPACE, _SPACE = 1 << 31, 1 << 32

Endpoint = tuple[bytes, int]
"""A packed IPv4 or IPv6 address and a port."""


@dataclass(frozen=True)
class ServiceProfile:
    """Measured service times and where they come from.

    Attributes:
        service: the means; their sum is the mean cycle time.
        deviation: the standard deviations over the cycles.
        cycles: the number of cycles that were averaged.
        gradient_bytes: mean payload of a gradient.
        weights_bytes: mean payload of the weights.
        server: address of the server.
        worker: address of the worker.
    """

    service: ServiceTimes
    deviation: tuple[float, float, float, float]
    cycles: int
    gradient_bytes: float
    weights_bytes: float
    server: str
    worker: str

    def document(self) -> dict[str, Any]:
        """The profile as JSON; `mltcp-placement throughput` reads the four times."""
        names = [field.name for field in fields(ServiceTimes)]
        return {
            "schema": 1,
            **service_document(self.service),
            "cycle_s": self.service.cycle_s,
            "deviation": dict(zip(names, self.deviation, strict=True)),
            **{name: value for name, value in asdict(self).items() if name not in ("service", "deviation")},
        }


def profile(
    path: Path,
    *,
    server: str | None = None,
    warm_up: int = WARM_UP_CYCLES,
    most_cycles: int = MOST_CYCLES,
    on_packets: Callable[[int], None] = lambda _: None,
) -> ServiceProfile:
    """Read a capture, and measure the four phases of the worker's cycle.

    Args:
        path: of the capture.
        server: the address of the server, as ``10.0.0.1``, ``10.0.0.1:2222`` or ``[fe80::1]:2222``; by default the
            host that accepted the connections, if the capture shows that.
        warm_up: cycles that are left out at the beginning.
        most_cycles: the number of cycles after which to stop.
        on_packets: called periodically with the number of packets read so far.

    Raises:
        UsageError: no capture, an unknown server, more than one worker, payload in one direction only, or fewer than
            three cycles.
    """
    if warm_up < 0:
        raise UsageError(f"warmup: expected 0 or more, got {warm_up}")
    if most_cycles < FEWEST_CYCLES:
        raise UsageError(f"cycles: expected {FEWEST_CYCLES} or more, got {most_cycles}")
    packets = sorted(tcp_packets(path, on_packets), key=lambda packet: packet.at_ns)
    if not any(packet.payload_bytes for packet in packets):
        raise UsageError(f"{path}: expected TCP packets with payload, got none")
    endpoints = _server_endpoints(path, packets, server)
    own = [packet for packet in packets if (packet.source in endpoints) != (packet.destination in endpoints)]
    worker = _only_worker(path, own, endpoints)
    found = transfers(own, endpoints)
    cycles = _cycles(found)
    kept = cycles[warm_up : warm_up + most_cycles]
    if len(kept) < FEWEST_CYCLES:
        raise UsageError(
            f"{path}: cycles: expected {FEWEST_CYCLES} or more after {warm_up} of warm-up, "
            f"got {len(kept)} ({len(cycles)} in all)"
        )
    phases = list(zip(*(cycle.phases_s for cycle in kept), strict=True))
    means = [statistics.fmean(phase) for phase in phases]
    worker_s, uplink_s, server_s, downlink_s = (statistics.pstdev(phase) for phase in phases)
    return ServiceProfile(
        ServiceTimes(*means),
        (worker_s, uplink_s, server_s, downlink_s),
        len(kept),
        statistics.fmean(cycle.gradient.size_bytes for cycle in kept),
        statistics.fmean(cycle.weights.size_bytes for cycle in kept),
        _text(endpoints),
        worker,
    )


@dataclass(frozen=True)
class _Cycle:
    """From the beginning of a gradient to that of the next."""

    gradient: Transfer
    weights: Transfer
    next_ns: int

    @property
    def phases_s(self) -> tuple[float, float, float, float]:
        """S^W, S^U, S^S, S^D of this cycle, which sum to its duration."""
        gradient, weights = self.gradient, self.weights
        return (
            (self.next_ns - weights.end_ns) / NS_PER_S,
            (gradient.end_ns - gradient.begin_ns) / NS_PER_S,
            (weights.begin_ns - gradient.end_ns) / NS_PER_S,
            (weights.end_ns - weights.begin_ns) / NS_PER_S,
        )


def _cycles(found: Sequence[Transfer]) -> list[_Cycle]:
    first = 0 if found and found[0].to_server else 1
    return [
        _Cycle(found[number], found[number + 1], found[number + 2].begin_ns)
        for number in range(first, len(found) - 2, 2)
    ]


def _server_endpoints(path: Path, packets: Sequence[TcpPacket], given: str | None) -> frozenset[Endpoint]:
    if given is None:
        return _accepting(path, packets)
    every = {packet.source for packet in packets} | {packet.destination for packet in packets}
    chosen = frozenset(
        (address, port)
        for address, port in every
        if given
        in (address_text(address), f"{address_text(address)}:{port}", f"[{address_text(address)}]:{port}")
    )
    if not chosen:
        known = ", ".join(sorted({address_text(address) for address, _ in every})[:8])
        raise UsageError(f"{path}: server: expected one of {known}, got {given!r}")
    if chosen == every:
        raise UsageError(f"{path}: server: expected an address with a port, since both sides are {given}")
    return chosen


def _accepting(path: Path, packets: Sequence[TcpPacket]) -> frozenset[Endpoint]:
    """The endpoints that accepted connections with payload, if all are of one host."""
    used = {frozenset((packet.source, packet.destination)) for packet in packets if packet.payload_bytes}
    opened = [packet for packet in packets if packet.opens]
    accepting = {each.destination for each in opened if frozenset((each.source, each.destination)) in used}
    addresses = {address for address, _ in accepting}
    if len(addresses) == 1:
        return frozenset(accepting)
    reason = (
        "several hosts accepted connections" if addresses else "the capture shows no connection being opened"
    )
    raise UsageError(f"{path}: server: expected its address (--server ADDRESS), because {reason}")


def _only_worker(path: Path, packets: Sequence[TcpPacket], server: frozenset[Endpoint]) -> str:
    sent: Counter[bytes] = Counter()
    received: Counter[bytes] = Counter()
    for packet in packets:
        if packet.destination in server:
            sent[packet.source[0]] += packet.payload_bytes
        else:
            received[packet.destination[0]] += packet.payload_bytes
    for name, directions in (("to", sent), ("from", received)):
        if not any(directions.values()):
            raise UsageError(
                f"{path}: expected payload in both directions, got none {name} the server {_text(server)}"
            )
    total = sent + received
    workers = [address for address in total if total[address] >= CONTROL_SHARE * max(total.values())]
    if len(workers) > 1:
        names = ", ".join(sorted(map(address_text, workers))[:8])
        raise UsageError(f"{path}: expected one worker, got {len(workers)}: {names}")
    return address_text(workers[0])


def _text(endpoints: frozenset[Endpoint]) -> str:
    return ", ".join(sorted({address_text(address) for address, _ in endpoints}))


# -- transfers: maximal runs of payload packets of one direction between two runs of the other -------------------------


@dataclass
class _PacketRun:
    """Consecutive payload packets of one direction, by their numbers in the capture."""

    to_server: bool
    first: int
    last: int
    size_bytes: int
    before: _PacketRun | None = None
    after: _PacketRun | None = None
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


def _runs(packets: Sequence[TcpPacket], server: frozenset[Endpoint]) -> list[_PacketRun]:
    runs: list[_PacketRun] = []
    for number, packet in enumerate(packets):
        if not packet.payload_bytes:
            continue
        to_server = packet.destination in server
        if not runs or runs[-1].to_server != to_server:
            runs.append(_PacketRun(to_server, number, number, 0))
        runs[-1].last = number
        runs[-1].size_bytes += packet.payload_bytes
    return runs


def _without_control_messages(runs: list[_PacketRun]) -> list[_PacketRun]:
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


def _join(run: _PacketRun, after: _PacketRun) -> None:
    """Make one of two runs of the same direction."""
    run.last, run.size_bytes = after.last, run.size_bytes + after.size_bytes
    run.after, after.dropped = after.after, True
    if run.after is not None:
        run.after.before = run


def _acknowledged_ns(
    packets: Sequence[TcpPacket], server: frozenset[Endpoint], run: _PacketRun, following: int
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


# -- packets -----------------------------------------------------------------------------------------------------------


class TcpPacket(NamedTuple):
    """A TCP segment as it was captured.

    Attributes:
        at_ns: since the epoch.
        source: of the packet.
        destination: of the packet.
        sequence: the number of the first byte of payload.
        acknowledged: the number of the next byte that its sender expects; None without the ACK flag.
        payload_bytes: without headers, also of a capture that holds only the headers.
        opens: whether it is the first packet of a connection (SYN without ACK).
    """

    at_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledged: int | None
    payload_bytes: int
    opens: bool


def tcp_packets(path: Path, on_packets: Callable[[int], None] = lambda _: None) -> Iterator[TcpPacket]:
    """Yield the TCP packets of a capture in its order; other packets are passed over.

    Args:
        path: of the capture; see `IpPackets`.
        on_packets: called periodically with the number of packets read so far.

    Raises:
        UsageError: no capture, or one of another link type, or one whose packets are all cut in their headers.
    """
    packets = IpPackets(path, on_packets)
    some = False
    for packet in packets:
        some = True
        if packet.protocol == _TCP and len(packet.frame) >= packet.begin + 20:
            yield _segment(packet)
    if not some and packets.cut:
        raise UsageError(f"{path}: {packets.none_found()}")


def _segment(packet: IpPacket) -> TcpPacket:
    source_port, port, sequence, acknowledged, offset, flags = struct.unpack_from(
        "!HHIIBB", packet.frame, packet.begin
    )
    return TcpPacket(
        packet.at_ns,
        (packet.source, source_port),
        (packet.destination, port),
        sequence,
        acknowledged if flags & _ACK else None,
        max(0, packet.payload_bytes - 4 * (offset >> 4)),
        flags & (_SYN | _ACK) == _SYN,
    )
