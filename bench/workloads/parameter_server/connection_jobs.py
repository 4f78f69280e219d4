"""Assigns each connection of a process to a job of its own in the kernel, as the daemon does for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.ebpf.congestion_controls import Controls
from mltcp.pacing.tcp_info import addresses, set_congestion_control, tcp_info, tcp_sockets

_NUMBER_BYTES = 4
_PLAIN = "reno"


@dataclass(frozen=True)
class ConnectionJobs:
    """The jobs in the kernel to which a server's connections belong.

    Attributes:
        control: of the connections.
        numbers: the kernel's number of the job of each peer, by its address.
    """

    control: str
    numbers: tuple[tuple[str, int], ...]


def assign(jobs: ConnectionJobs) -> None:
    """Make every established connection to a peer of `jobs` a flow of that peer's job, under the jobs' control.

    Raises:
        MltcpError: no control of this project is loaded, or the kernel refuses.
    """
    numbers = dict(jobs.numbers)
    with Controls().shared_map("mltcp_tags") as tags:
        for descriptor in tcp_sockets():
            if tcp_info(descriptor) is None:
                continue
            try:
                _, (peer, _port) = addresses(descriptor)
            except OSError:
                continue  # it listens
            if peer in numbers:
                # Leaving the control takes the flow out of its present job's count.
                set_congestion_control(descriptor, _PLAIN)
                key = descriptor.to_bytes(_NUMBER_BYTES, "little")
                value = tags.lookup(key) or bytes(tags.value_size)
                tags.update(key, numbers[peer].to_bytes(_NUMBER_BYTES, "little") + value[_NUMBER_BYTES:])
                set_congestion_control(descriptor, jobs.control)
