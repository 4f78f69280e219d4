"""The all-reduce gate of a run: a process at a Unix socket, which ranks in any network namespace can reach."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

from bench.compare.coordination.coordinator import Coordinator, PlacedDemand
from bench.compare.coordination.server_process import server_process
from bench.workloads.profile import HEADER_OVERHEAD
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError
from placement.gate import messages
from placement.gate.jobs import GateJob, GateLinks, job_document
from placement.model.job import Contention

VARIABLE, BYTES_VARIABLE = "MLTCP_GATE", "MLTCP_GATE_BYTES"
SOCKET = "gate"
_ANSWER_S = 10.0
_CHUNK = 65536


class Gated(Coordinator):
    """Makes every rank ask the gate for admission, and describes each job to the gate before it starts."""

    def __init__(self, path: Path) -> None:
        super().__init__(variables=((VARIABLE, f"unix:{path}"), (BYTES_VARIABLE, "4096")))
        self._path = path

    def placed(self, job: PlacedDemand) -> None:
        """Describe the job to the gate: its links, its iterations and its compute time."""
        silent_ns = sum(phase.duration_ns for phase in job.demand.phases if not phase.bandwidth_bps)
        _describe(self._path, GateJob(job.name, job.links, job.iterations, silent_ns, len(job.slots)))


@contextmanager
def gated(
    policy: str, rate_bps: int, directory: Path, speeds: Mapping[str, Fraction] | None = None
) -> Iterator[Gated]:
    """Run a gate with this policy, for as long as the block lasts.

    Its contention model is that of the lab: the time of a byte is that at `rate_bps`, and transfers that share a link
    pay no penalty beyond their shares (docs/results.md).

    Args:
        policy: srsf-N, ada-srsf or ada-srsf-k.
        rate_bps: the rate of a link of speed 1.
        directory: where its socket is.
        speeds: of links that have another speed.

    Raises:
        MltcpError: the gate did not start.
    """
    contention = Contention(Fraction(0), Fraction(8 * HEADER_OVERHEAD * 1e9 / rate_bps), Fraction(0))
    path = directory / SOCKET
    path.unlink(missing_ok=True)  # of a run before
    served_links = GateLinks(speeds=dict(speeds or {}))
    with server_process("the gate", _serve, path, policy, contention, served_links):
        yield Gated(path)


def _serve(connection: Connection, path: Path, policy: str, contention: Contention, links: GateLinks) -> None:
    """The main function of the gate's process."""
    from placement.gate.server import GateConfiguration, GateServer

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = GateServer(GateConfiguration(Address(path=path), policy, contention, links))
    except Exception as error:
        connection.send(str(error) or type(error).__name__)
        raise SystemExit(1) from None
    connection.send("")
    server.run()


def _describe(path: Path, job: GateJob) -> None:
    """Describe a job to the gate; raises MltcpError if the gate refuses it or has ended."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_ANSWER_S)
            peer.connect(str(path))
            peer.sendall(messages.json_message(messages.DESCRIBE, job_document(job)))
            kind, body = _answer(peer)
    except OSError as error:
        raise MltcpError(f"job {job.name} cannot be described to the gate: {error}") from None
    if kind != messages.WELCOME:
        raise MltcpError(f"the gate refuses job {job.name}: {body.decode(errors='replace')}")


def _answer(peer: socket.socket) -> tuple[int, bytes]:
    received = bytearray()
    while True:
        chunk = peer.recv(_CHUNK)
        if not chunk:
            raise OSError("the gate closed the connection")
        received += chunk
        for answer in messages.take_messages(received):
            return answer
