"""A network as a graph: hosts and switches, and the directed links between them, each with its queue."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Marking:
    """When a link marks packets: never below `lowest_bytes` of queue, always above `highest_bytes`.

    Between them the probability rises to `probability` (WRED); where both are equal, marks begin at once (a step).
    """

    lowest_bytes: float
    highest_bytes: float
    probability: float = 1.0


@dataclass(frozen=True)
class Pause:
    """Priority flow control: a queue of `stop_bytes` pauses whoever sends into it, until it has `go_bytes`."""

    stop_bytes: float
    go_bytes: float


@dataclass(frozen=True)
class NetworkLink:
    """One direction of a cable, with the queue of the port that sends.

    Attributes:
        source, target: names of hosts or switches.
        rate_bps: bits per second.
        delay_ns: of propagation.
        buffer_bytes: a packet that finds so much is dropped; infinite on a network that pauses.
        marking: None: it marks nothing.
        pause: None: it pauses nobody.
    """

    source: str
    target: str
    rate_bps: float
    delay_ns: int = 1000
    buffer_bytes: float = math.inf
    marking: Marking | None = None
    pause: Pause | None = None

    @property
    def name(self) -> str:
        """As it is written in reports: ``leaf3->spine1``."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True)
class Network:
    """Hosts, by number, and all links, by number."""

    hosts: tuple[str, ...]
    links: tuple[NetworkLink, ...]
