"""The lab of an asynchronous job: workers and parameter servers on one switch, with the limit at each server's port."""

from __future__ import annotations

from bench.lab.link import Link
from bench.lab.topology import MAX_JOBS, LabHost, LabServer, LabSwitch, Topology, Trunk
from mltcp.core.errors import UsageError

SWITCH = "switch"
MOST_WORKERS = MAX_JOBS


def star(workers: int, servers: int, link: Link) -> Topology:
    """Workers ``w0`` ... and servers ``ps0`` ...; worker k is job k of the lab, so that its bytes are counted apart.

    Raises:
        UsageError: there are too many or too few.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"workers: expected 1 to {MOST_WORKERS}, got {workers}")
    names = [server_name(number) for number in range(servers)]
    return Topology(
        hosts=tuple(LabHost(worker_name(number), SWITCH, number, 0) for number in range(workers)),
        switches=(LabSwitch(SWITCH),),
        trunks=tuple(Trunk(name, name, SWITCH, link) for name in names),
        servers=tuple(LabServer(name, number) for number, name in enumerate(names)),
    )


def server_name(number: int) -> str:
    """The name of a parameter server in the lab."""
    return f"ps{number}"


def server_address() -> str:
    """The address of the leading parameter server."""
    return LabServer(server_name(0), 0).address


def worker_name(number: int) -> str:
    """The name of a worker in the lab."""
    return f"w{number}"
