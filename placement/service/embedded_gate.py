"""The all-reduce gate that the service runs in its own process."""

from __future__ import annotations

from collections.abc import Iterable

from mltcp.core.address import Address
from placement.gate.messages import GateJob
from placement.gate.server import GateConfiguration, GateServer
from placement.service.state.job_record import JobRecord

VARIABLE = "MLTCP_GATE"
SOCKET_OWNER = "MLTCP_GATE_SOCKET_OWNER"


class EmbeddedGate:
    """A gate server on a thread of its own, which the service informs about placed jobs."""

    def __init__(self, address: Address, policy: str) -> None:
        self._server = GateServer(GateConfiguration(address, policy))

    @property
    def address(self) -> Address:
        """The address at which ranks request admission."""
        return self._server.address

    def start(self, jobs: Iterable[JobRecord]) -> None:
        """Start the gate's thread, which knows of these jobs."""
        self._server.start()
        for job in jobs:
            if job.placed:
                self._describe(job)

    def job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        """See `lifecycle.JobListener`."""
        if before is not None and job.placed and (not before.placed or job.demand != before.demand):
            self._describe(job)

    def _describe(self, job: JobRecord) -> None:
        """Inform the gate about a job's links and its compute time, by which SRSF ranks jobs."""
        phases = job.demand.phases if job.demand else ()
        compute_ns = sum(phase.duration_ns for phase in phases if not phase.bandwidth_bps)
        self._server.describe(
            GateJob(job.id, job.links, job.spec.iterations if phases else None, compute_ns, job.count)
        )

    def close(self) -> None:
        """Stop the gate; jobs then run ungated."""
        self._server.close()
