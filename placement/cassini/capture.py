"""The demand of a job from a packet capture of one of its hosts, for jobs that do not use the ``mltcp`` backend."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import numpy as np

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError, shown
from placement.cassini.ip_packets import IpPacket, IpPackets, address_text

BIN_NS = 1_000_000
FEWEST_ITERATIONS = 3

_MOST_BINS = 20_000_000
_MOST_SENDERS = 4096
_MOST_PACKETS = 50_000_000
_SHOWN = 8
_LIKENESS = 0.3
_OF_THE_BEST = 0.9
_UP = 0.05
_SHORT_PAUSE = 0.01
_FEWEST_BINS = 8


@dataclass(frozen=True)
class Captured:
    """The job that a capture shows.

    Attributes:
        demand: an iteration, from the start of its longest silence.
        sender: the address whose packets were counted.
        iterations: the number of iterations in the capture, including fractions.
        likeness: the autocorrelation at the iteration time, at most 1.
        packets: the number of packets of the sender.
    """

    demand: Demand
    sender: str
    iterations: float
    likeness: float
    packets: int


def captured(
    path: Path,
    *,
    sender: str | None = None,
    bin_ns: int = BIN_NS,
    on_packets: Callable[[int], None] = lambda _: None,
) -> Captured:
    """Read a capture (pcap or pcapng), and find the period and the phases of a host's traffic.

    The bytes are counted in bins. The iteration time is the shortest lag whose autocorrelation is close to the highest,
    refined over all iterations. Then all iterations are folded into one; an Up phase is where its mean exceeds a
    twentieth of its busiest bins.

    Args:
        path: of the capture.
        sender: its IPv4 or IPv6 address; else the one that sent most bytes.
        bin_ns: the resolution.
        on_packets: called periodically with the number of packets read so far.

    Raises:
        UsageError: no capture, no packets of that sender, or no period in them.
    """
    if not 1_000 <= bin_ns <= 10**9:
        raise UsageError(f"bin_ns: expected 1000 to 1000000000, got {bin_ns}")
    chosen, own = _of_sender(IpPackets(path, on_packets), sender)
    times_ns, sizes = np.array(own.times_ns, np.int64), np.array(own.sizes, np.float64)
    times_ns -= times_ns.min()
    period_ns, likeness = _period(times_ns, sizes, bin_ns, path)
    demand = Demand(_phases(times_ns, sizes, period_ns, bin_ns))
    return Captured(demand, chosen, float(times_ns.max() / period_ns), likeness, len(sizes))


class _Sent:
    """The packets of one sender, in 12 bytes each."""

    def __init__(self) -> None:
        self.times_ns, self.sizes = array("q"), array("I")

    def add(self, packet: IpPacket) -> None:
        self.times_ns.append(packet.at_ns)
        self.sizes.append(packet.wire_bytes)


def _of_sender(packets: IpPackets, sender: str | None) -> tuple[str, _Sent]:
    """The packets of this sender, or of the one that sent most bytes."""
    wanted = None if sender is None else _packed(sender)
    sent: dict[bytes, _Sent] = {}
    others: set[bytes] = set()
    for kept, packet in enumerate(packets):
        if wanted not in (None, packet.source):
            if len(others) < _SHOWN:
                others.add(packet.source)
            continue
        if (packet.source not in sent and len(sent) == _MOST_SENDERS) or kept >= _MOST_PACKETS:
            raise UsageError(
                f"{packets.path}: expected at most {_MOST_SENDERS} senders and {_MOST_PACKETS} packets, got more; "
                "name one by --sender, or capture fewer"
            )
        sent.setdefault(packet.source, _Sent()).add(packet)
    if sent:
        address = max(sorted(sent), key=lambda each: sum(sent[each].sizes))
        return address_text(address), sent[address]
    if not others:
        raise UsageError(f"{packets.path}: {packets.none_found()}")
    found = ", ".join(sorted(map(address_text, others)))
    raise UsageError(f"{packets.path}: no packets from {sender}; there are some from {found}")


def _packed(address: str) -> bytes:
    try:
        return ip_address(address).packed
    except ValueError:
        raise UsageError(f"sender: expected an IPv4 or IPv6 address, got {shown(address)}") from None


def _period(times_ns: np.ndarray, sizes: np.ndarray, bin_ns: int, path: Path) -> tuple[float, float]:
    """Find the iteration time, and the autocorrelation at it."""
    bins = int(times_ns.max() // bin_ns) + 1
    if bins > _MOST_BINS:
        raise UsageError(
            f"{path}: expected at most {_MOST_BINS} bins, got {bins} of {bin_ns} ns; choose longer ones"
        )
    likeness = _autocorrelation(np.bincount(times_ns // bin_ns, sizes, bins))
    longest = bins // FEWEST_ITERATIONS
    lags = np.arange(_FEWEST_BINS, longest + 1)
    is_peak = (likeness[lags] >= likeness[lags - 1]) & (likeness[lags] >= likeness[lags + 1])
    peaks = lags[is_peak].tolist()
    best = max((likeness[lag] for lag in peaks), default=0.0)
    if best < _LIKENESS:
        raise UsageError(
            f"{path}: what is sent has no period of {_FEWEST_BINS * bin_ns / 1e6:g} to {longest * bin_ns / 1e6:g} ms "
            f"(a third of the capture)"
        )
    lag = next(lag for lag in peaks if likeness[lag] >= _OF_THE_BEST * best)
    return _refined(likeness, lag, bins) * bin_ns, float(likeness[lag])


def _autocorrelation(sent: np.ndarray) -> np.ndarray:
    """The autocorrelation of the bytes in the bins, 1 at lag 0; each lag is averaged over the bins that it has."""
    count = len(sent)
    # A power of two: a length with a large prime factor takes a hundred times as long.
    spectrum = np.fft.rfft(sent - sent.mean(), 1 << (2 * count - 1).bit_length())
    raw = np.fft.irfft(spectrum * spectrum.conj())[:count]
    whole: np.ndarray = raw / np.arange(count, 0, -1)
    return whole / whole[0] if whole[0] > 0 else np.zeros(count)


def _refined(likeness: np.ndarray, lag: int, bins: int) -> float:
    """Refine the period, in bins, at the peak of its largest multiple within half of the capture."""
    period = float(lag)
    for multiple in range(2, bins // 2 // lag + 1):
        about = round(period * multiple)
        # From one multiple to the next, the estimate is off by at most a bin or two.
        near = range(max(1, about - 2), min(bins // 2, about + 2) + 1)
        if len(near):
            period = max(near, key=lambda each: likeness[each]) / multiple
    return period


def _phases(times_ns: np.ndarray, sizes: np.ndarray, period_ns: float, bin_ns: int) -> tuple[Phase, ...]:
    """Fold all iterations into one and cut it into Up and Down phases; it starts with the longest Down phase."""
    count = max(_FEWEST_BINS, round(period_ns / bin_ns))
    places = np.minimum((times_ns % period_ns * count / period_ns).astype(np.int64), count - 1)
    iterations = times_ns.max() / period_ns
    bits = np.bincount(places, sizes, count) * 8 / iterations
    up = bits > _UP * np.percentile(bits[bits > 0], 95)
    _close_short_pauses(up)
    if up.all():
        return (Phase(round(period_ns), round(bits.sum() * 1e9 / period_ns)),)
    edges = np.flatnonzero(up != np.roll(up, 1))
    longest = max(
        (int((end - begin) % count) or count, -int(begin))
        for begin, end in zip(edges, np.roll(edges, -1), strict=True)
        if not up[begin]
    )
    first = -longest[1]
    up, bits = np.roll(up, -first), np.roll(bits, -first)
    borders = [0, *np.flatnonzero(up[1:] != up[:-1]) + 1, count]
    phases = []
    for begin, end in pairwise(borders):
        duration_ns = round(end * period_ns / count) - round(begin * period_ns / count)
        sent = bits[begin:end].sum() if up[begin] else 0.0
        phases.append(Phase(duration_ns, round(sent * 1e9 / duration_ns)))
    return tuple(phases)


def _close_short_pauses(up: np.ndarray) -> None:
    """Merge pauses into their Up phase that are shorter than two bins or a hundredth of the iteration."""
    count = len(up)
    shortest = max(2, int(_SHORT_PAUSE * count) + 1)
    sending = np.flatnonzero(up)
    for before, after in zip(sending, np.roll(sending, -1), strict=True):
        pause = (after - before - 1) % count
        if 0 < pause < shortest:
            up[(before + 1 + np.arange(pause)) % count] = True
