"""The gate that the service runs beside itself, and what it is told of the jobs."""

from __future__ import annotations

from mltcp.core.address import Address
from placement.gate.jobs import GateJob
from placement.gate.server import GateConfiguration, GateServer
from placement.service.state.job_record import JobRecord

VARIABLE = "MLTCP_GATE"


class EmbeddedGate:
    """A gate on a thread of its own."""

    def __init__(self, address: Address, policy: str) -> None:
        self._server = GateServer(GateConfiguration(address, policy))

    @property
    def address(self) -> Address:
        """Where ranks ask."""
        return self._server.address

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def placed(self, job: JobRecord) -> None:
        """Tell which links a job uses, and what it has to compute: SRSF ranks by that."""
        phases = job.demand.phases if job.demand else ()
        compute_ns = sum(phase.duration_ns for phase in phases if not phase.bandwidth_bps)
        self._server.describe(
            GateJob(job.id, job.links, job.spec.iterations if phases else None, compute_ns, job.count)
        )

    def close(self) -> None:
        """Open all gates."""
        self._server.close()
