"""A gate for the lab's jobs: a process of its own at a Unix socket, which works across network namespaces."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

from bench.compare.coordination.coordination import Coordination, PlacedDemand, Uncoordinated
from bench.compare.coordination.process import serving
from bench.workloads.profile import HEADER_OVERHEAD
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError
from placement.gate import messages
from placement.gate.jobs import GateJob, GateLinks, job_document
from placement.model.contention import Contention

VARIABLE, BYTES_VARIABLE = "MLTCP_GATE", "MLTCP_GATE_BYTES"
_ANSWER_S = 10.0
_CHUNK = 65536


class Gated(Uncoordinated):
    """Every rank asks at the gate, which is told of each job before it starts."""

    def __init__(self, path: Path) -> None:
        super().__init__(variables=((VARIABLE, f"unix:{path}"), (BYTES_VARIABLE, "4096")))
        self._path = path

    def placed(self, job: PlacedDemand) -> None:
        """Tell the gate which links the job uses, and what it has to compute."""
        silent_ns = sum(phase.duration_ns for phase in job.demand.phases if not phase.bandwidth_bps)
        _describe(self._path, GateJob(job.name, job.links, job.iterations, silent_ns, len(job.slots)))


@contextmanager
def gated(policy: str, rate_bps: int, speeds: Mapping[str, Fraction] | None = None) -> Iterator[Coordination]:
    """A gate with this policy, for as long as the block lasts.

    The contention that it reckons with is that of the lab: a byte takes what it takes at `rate_bps`, and transfers that
    share a link pay no penalty beyond their shares (docs/results.md).

    Args:
        policy: srsf-N, ada-srsf or ada-srsf-k.
        rate_bps: of a link of speed 1.
        speeds: of the links that have another.

    Raises:
        MltcpError: the gate did not start.
    """
    contention = Contention(Fraction(0), Fraction(8 * HEADER_OVERHEAD * 1e9 / rate_bps), Fraction(0))
    with tempfile.TemporaryDirectory(prefix="mltcp-gate-") as directory:
        path = Path(directory) / "gate"
        served_links = GateLinks(speeds=dict(speeds or {}))
        with serving("the gate", _serve, path, policy, contention, served_links):
            yield Gated(path)


def _serve(connection: Connection, path: Path, policy: str, contention: Contention, links: GateLinks) -> None:
    """The life of the gate's process."""
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
    """Raises MltcpError: the gate refuses, or is gone."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_ANSWER_S)
            peer.connect(str(path))
            peer.sendall(messages.json_message(messages.DESCRIBE, job_document(job)))
            kind, body = _answer(peer)
    except OSError as error:
        raise MltcpError(f"the gate cannot be told of job {job.name}: {error}") from None
    if kind != messages.WELCOME:
        raise MltcpError(f"the gate refuses job {job.name}: {body.decode(errors='replace')}")


def _answer(peer: socket.socket) -> tuple[int, bytes]:
    received = bytearray()
    while True:
        chunk = peer.recv(_CHUNK)
        if not chunk:
            raise OSError("it hung up")
        received += chunk
        for answer in messages.take_messages(received):
            return answer
