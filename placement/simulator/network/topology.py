"""A network as a graph: hosts and switches, and the directed links between them, each with its queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import HIGHEST_BPS, LARGEST_BYTES, check_number, parse_number, parse_size_bytes

CLASSES = 8
"""Traffic classes of a port, numbered from 0, as the priorities of IEEE 802.1Q."""

_LONGEST_DELAY_NS = 10**9


@dataclass(frozen=True)
class Marking:
    """When a link marks packets: never below `lowest_bytes` of queue, always above `highest_bytes`.

    Between them the probability rises to `probability` (WRED); where both are equal, marks begin at once (a step).
    Raises UsageError for values out of range.
    """

    lowest_bytes: float
    highest_bytes: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        check_number(self.lowest_bytes, field="marking: lowest_bytes", lowest=0, highest=LARGEST_BYTES)
        check_number(
            self.highest_bytes,
            field="marking: highest_bytes",
            lowest=self.lowest_bytes,
            highest=LARGEST_BYTES,
        )
        check_number(self.probability, field="marking: probability", lowest=0, highest=1)

    @classmethod
    def parse(cls, text: str, field: str, highest: int = LARGEST_BYTES) -> Self:
        """A size such as ``40kb``, which is a step, or a ramp ``LOWEST-HIGHEST-PROBABILITY``, such as 5kb-200kb-0.01.

        Raises:
            UsageError: it is neither; the message begins with the field.
        """
        parts = text.split("-")
        if len(parts) not in (1, 3):
            raise UsageError(f"{field}: expected SIZE or LOWEST-HIGHEST-PROBABILITY, got {shown(text)}")
        sizes = [parse_size_bytes(part, field=field, highest=highest) for part in parts[:2]]
        if sizes[0] > sizes[-1]:
            raise UsageError(f"{field}: expected LOWEST up to HIGHEST, got {shown(text)}")
        if len(parts) == 1:
            return cls(sizes[0], sizes[0])
        probability = parse_number(parts[2], field=f"{field}: probability", lowest=0, highest=1)
        return cls(sizes[0], sizes[1], probability)


@dataclass(frozen=True)
class Pause:
    """Priority flow control: a queue of `stop_bytes` pauses whoever sends into it, until it has `go_bytes`.

    Raises UsageError for values out of range.
    """

    stop_bytes: float
    go_bytes: float

    def __post_init__(self) -> None:
        check_number(self.go_bytes, field="pause: go_bytes", lowest=0, highest=LARGEST_BYTES)
        check_number(
            self.stop_bytes, field="pause: stop_bytes", lowest=max(1, self.go_bytes), highest=LARGEST_BYTES
        )


@dataclass(frozen=True)
class ClassQueues:
    """A port with a queue for each traffic class, which has the link's buffer, marking and pause for itself.

    Attributes:
        weights: of the classes, from class 0 on; empty: strict priorities, the highest class with packets first.

    Raises UsageError for values out of range.
    """

    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != CLASSES:
            raise UsageError(f"class queues: weights: expected {CLASSES} or none, got {len(self.weights)}")
        for weight in self.weights:
            check_number(weight, field="class queues: weights", lowest=1e-3, highest=1e6)


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
        classes: None: it ignores traffic classes, and has one queue.
        lane: tells parallel links between the same two apart.

    Raises:
        UsageError: no capacity, no buffer, two equal ends, or a value out of range.
    """

    source: str
    target: str
    rate_bps: float
    delay_ns: int = 1000
    buffer_bytes: float = math.inf
    marking: Marking | None = None
    pause: Pause | None = None
    classes: ClassQueues | None = None
    lane: int = 0

    def __post_init__(self) -> None:
        where = f"link {self.name}"
        if self.source == self.target:
            raise UsageError(f"{where}: expected two different ends")
        check_number(self.rate_bps, field=f"{where}: rate_bps", lowest=1, highest=HIGHEST_BPS)
        check_number(self.delay_ns, field=f"{where}: delay_ns", lowest=0, highest=_LONGEST_DELAY_NS)
        if self.buffer_bytes != math.inf:
            check_number(self.buffer_bytes, field=f"{where}: buffer_bytes", lowest=1, highest=LARGEST_BYTES)

    @property
    def name(self) -> str:
        """As it is written in reports: ``leaf3->spine1``, or ``leaf3->spine1#2`` for its third lane."""
        return f"{self.source}->{self.target}" + (f"#{self.lane}" if self.lane else "")


@dataclass(frozen=True)
class Network:
    """Hosts, by number, and all links, by number.

    The links that leave a host are its NICs, in the order of their numbers.

    Attributes:
        hosts: their names.
        links: between hosts and switches; a switch is whatever a link names that is no host.
        gpus: of each host; empty: one each.

    Raises:
        UsageError: no hosts, a host or link twice, or a host without GPUs.
    """

    hosts: tuple[str, ...]
    links: tuple[NetworkLink, ...]
    gpus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.hosts:
            raise UsageError("network: hosts: expected one or more, got none")
        for kind, names in (("host", self.hosts), ("link", tuple(link.name for link in self.links))):
            twice = _first_twice(names)
            if twice is not None:
                raise UsageError(f"network: {kind} {shown(twice)}: expected once, got twice")
        if self.gpus and (len(self.gpus) != len(self.hosts) or min(self.gpus) < 1):
            raise UsageError(
                f"network: gpus: expected 1 or more for each of {len(self.hosts)} hosts, got {shown(self.gpus)}"
            )

    def gpus_of(self, host: int) -> int:
        """The number of GPUs of a host."""
        return self.gpus[host] if self.gpus else 1


def _first_twice(names: tuple[str, ...]) -> str | None:
    if len(set(names)) == len(names):
        return None
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
