"""The hosts of a comparison on real machines: their facts, and what each of them counted during a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostFacts:
    """A host, as its agent found it.

    Attributes:
        name: as in the hosts file.
        address, interface: of its ranks.
        system: the host name, by uname(2).
        kernel: its release.
        machine: the architecture.
        processors: the number of processors that are online.
        driver: of the interface; None: the driver does not tell.
        mtu: of the interface, in bytes.
        speed_bps: of the interface; None: the driver does not tell.
        gpus: the CUDA identifiers that the hosts file gives it.
        sets_control_by: ``cgroup`` where the agent runs as root, else ``socket``.
        clock_offset_s: the host's CLOCK_REALTIME less that of the launcher.
        round_trip_s: the shortest round trip to its agent, which bounds the error of clock offsets.
    """

    name: str
    address: str
    interface: str
    system: str
    kernel: str
    machine: str
    processors: int
    driver: str | None
    mtu: int
    speed_bps: int | None
    gpus: tuple[str, ...] = ()
    sets_control_by: str = "cgroup"
    clock_offset_s: float = 0.0
    round_trip_s: float = 0.0


@dataclass(frozen=True)
class HostUse:
    """The counters of one host during a run, and its load.

    Attributes:
        host: its name.
        sent_bytes, received_bytes: of the interface.
        drops: packets that the interface dropped, in both directions.
        ce_packets: packets that arrived with an ECN mark, on all interfaces.
        retransmits: segments that TCP retransmitted, of all programs.
        other_load: the share of all processors' time that other programs used.
    """

    host: str
    sent_bytes: int
    received_bytes: int
    drops: int
    ce_packets: int
    retransmits: int
    other_load: float
