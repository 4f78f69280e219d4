"""Service times from a packet capture of one worker that trains with one parameter server.

Source: Lin et al. (MASCOTS 2018), Section III-A: transmission times directly, processing times from the end of a
transmission to the beginning of the next, averaged over up to 200 cycles. The capture is best taken on the server's
host, where both links end.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.cassini.ip_packets import address_text
from placement.experiments.parameter_server.tcp_packets import Endpoint, TcpPacket, tcp_packets
from placement.experiments.parameter_server.transfers import CONTROL_SHARE, Transfer, transfers
from placement.model.service_times import ServiceTimes, service_document

FEWEST_CYCLES = 3
MOST_CYCLES = 200
WARM_UP_CYCLES = 5


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
