"""The interface of what decides about waiting jobs: one by one (`Placer`), or all at once (`JobScheduling`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord


class Dispatcher(Protocol):
    """Gives slots to waiting jobs whenever something changes; the life cycle tells it of each change of a job."""

    async def prepare(self) -> None:
        """Get ready for the first decision. Raises `MltcpError`: that fails, or a job that is there cannot be moved."""
        return None

    @abstractmethod
    async def run(self) -> None:
        """Decide whenever that is due; never returns."""

    @abstractmethod
    def capacity_changed(self, cause: str) -> None:
        """Notify that slots were freed or added."""

    @abstractmethod
    async def place(self, job: JobRecord, asked: str) -> None:
        """Place a job now if it waits, by the policy asked for if any. Raises `RequestError`: it is not placed."""

    @abstractmethod
    def why_waiting(self, job: JobRecord) -> pb.ExplainReply:
        """The explanation of a job that has not been placed."""

    def note(self, job: JobRecord) -> str:
        """A remark on the last decision about a job, for people; empty: none."""
        return ""

    def status(self) -> pb.DecisionStatus | None:
        """The state of decisions about all jobs; None where jobs are placed one by one."""
        return None

    async def close(self) -> None:
        """End its processes."""
        return None
