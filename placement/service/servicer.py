"""The gRPC servicer: maps calls of placement.proto to the service, and its errors to gRPC statuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, TypeVar

import grpc

from mltcp.core.errors import MltcpError
from placement.service.agents.sessions import AgentSession
from placement.service.operations import ServiceOperations
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc
from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.state.job_record import JobRecord

PAGE = 1000
"""The number of jobs in one reply of Status."""

CODES = {
    ErrorCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ErrorCode.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.STATE: grpc.StatusCode.FAILED_PRECONDITION,
}

_SETTLE_S = 0.1

_Reply = TypeVar("_Reply")
_Context = grpc.aio.ServicerContext


async def abort(context: _Context, error: MltcpError) -> NoReturn:
    """End a call with the status of an error, and the offending field as trailing metadata."""
    if isinstance(error, RequestError):
        context.set_trailing_metadata((("field", error.field),))
        await context.abort(CODES[error.code], str(error))
    await context.abort(grpc.StatusCode.INTERNAL, str(error))


def answering(
    method: Callable[[Any, Any], Awaitable[_Reply]],
) -> Callable[[Any, Any, _Context], Awaitable[_Reply]]:
    """Decorator: turns a method of a request into a gRPC handler that reports `MltcpError` as a status."""

    async def answer(servicer: Any, request: Any, context: _Context) -> _Reply:
        try:
            return await method(servicer, request)
        except MltcpError as error:
            await abort(context, error)

    answer.__doc__ = method.__doc__
    return answer


class PlacementServicer(pb_grpc.PlacementServicer):
    """Implements the service of placement.proto, which documents the methods."""

    def __init__(self, service: ServiceOperations) -> None:
        self._service = service

    @answering
    async def RegisterServers(self, request: pb.RegisterServersRequest) -> pb.RegisterServersReply:
        """See placement.proto."""
        return pb.RegisterServersReply(added=await self._service.register_servers(request.servers))

    @answering
    async def RegisterLinks(self, request: pb.RegisterLinksRequest) -> pb.RegisterLinksReply:
        """See placement.proto."""
        return pb.RegisterLinksReply(added=await self._service.register_links(request.links))

    @answering
    async def RegisterJob(self, request: pb.RegisterJobRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.register_job(request.job)

    @answering
    async def Submit(self, request: pb.SubmitRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.submit(request.job)

    @answering
    async def Place(self, request: pb.PlaceRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.place(request.job_id, request.policy)

    @answering
    async def Release(self, request: pb.ReleaseRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.release(request.job_id, request.reason, request.failed)

    @answering
    async def Requeue(self, request: pb.RequeueRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.requeue(request.job_id, request.reason)

    @answering
    async def Status(self, request: pb.StatusRequest) -> pb.StatusReply:
        """See placement.proto."""
        service = self._service
        jobs, token = self._page(request)
        reply = pb.StatusReply(
            jobs=[service.status(job.id) for job in jobs],
            policy=service.context.rules.policy,
            lease_ns=round(service.context.rules.lease_s * 1e9),
            version=_version(),
            next_page_token=token,
        )
        if not request.without_cluster and not request.page_token:
            reply.servers.extend(self._servers())
            reply.links.extend(self._links())
        return reply

    @answering
    async def Score(self, request: pb.ScoreRequest) -> pb.ScoreReply:
        """See placement.proto."""
        return await self._service.score(request)

    @answering
    async def TimeShifts(self, request: pb.TimeShiftsRequest) -> pb.TimeShiftsReply:
        """See placement.proto."""
        return pb.TimeShiftsReply(shifts=self._service.time_shifts(request.job_ids))

    @answering
    async def Explain(self, request: pb.ExplainRequest) -> pb.ExplainReply:
        """See placement.proto."""
        return self._service.explain(request.job_id)

    @answering
    async def PutProfile(self, request: pb.PutProfileRequest) -> pb.JobStatus:
        """See placement.proto."""
        return await self._service.put_profile(request.job_id, request.profile)

    @answering
    async def ReportDrift(self, request: pb.ReportDriftRequest) -> pb.ReportDriftReply:
        """See placement.proto."""
        return self._service.report_drift(request)

    async def Clock(self, request: pb.ClockRequest, context: _Context) -> pb.ClockReply:
        """See placement.proto."""
        return pb.ClockReply(now_ns=self._service.context.clock.now_ns())

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AgentMessage], context: _Context
    ) -> AsyncIterator[pb.Decision]:
        """See placement.proto."""
        try:
            session = await self._hello(request_iterator)
        except MltcpError as error:
            await abort(context, error)
        reader = asyncio.ensure_future(self._read(session, request_iterator))
        orderly = False
        try:
            while (decision := await session.next()) is not None:
                yield decision
            if reader.done() and (failure := reader.exception()) is not None:
                if isinstance(failure, MltcpError):
                    await abort(context, failure)
                raise failure
            orderly = reader.done() and not await _is_cancelled(context)
        finally:
            reader.cancel()
            self._service.agents.leave(session, orderly)

    async def _hello(self, messages: AsyncIterator[pb.AgentMessage]) -> AgentSession:
        first = await anext(aiter(messages), None)
        if first is None or not first.HasField("hello"):
            raise invalid("hello", "expected as the first message, got another or none")
        return self._service.agents.attach(first.hello)

    async def _read(self, session: AgentSession, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                await self._service.agent_says(session, message)
        finally:
            session.end()

    def _page(self, request: pb.StatusRequest) -> tuple[list[JobRecord], str]:
        """The jobs of the requested page, and the token of the next one."""
        registry = self._service.context.registry
        if request.job_ids:
            return [registry.job(each, f"job_ids[{place}]") for place, each in enumerate(request.job_ids)], ""
        if request.page_token and not request.page_token.isdecimal():
            raise invalid("page_token", f"expected a token of this service, got {request.page_token[:40]!r}")
        first = int(request.page_token or 0)
        jobs = [
            job
            for job in registry.jobs.values()
            if job.number >= first and not (request.unended and job.over)
        ]
        token = str(jobs[PAGE].number) if len(jobs) > PAGE else ""
        return jobs[:PAGE], token

    def _servers(self) -> list[pb.ServerStatus]:
        registry = self._service.context.registry
        return [
            pb.ServerStatus(
                server=server,
                gpus_free=registry.gpus.free_of(number),
                cpu_slots_free=registry.cpu_slots.free_of(number),
            )
            for number, server in enumerate(registry.servers)
        ]

    def _links(self) -> list[pb.LinkStatus]:
        registry = self._service.context.registry
        return [
            pb.LinkStatus(
                name=name,
                above=link.above,
                capacity_bps=link.capacity_bps,
                jobs=registry.jobs_of.get(name, ()),
            )
            for name, link in registry.tree.links.items()
        ]


async def _is_cancelled(context: _Context) -> bool:
    """Whether the peer vanished; waits `_SETTLE_S`, because gRPC ends its message stream before it cancels the call."""
    deadline = time.monotonic() + _SETTLE_S
    while not context.cancelled() and time.monotonic() < deadline:
        await asyncio.sleep(_SETTLE_S / 10)
    return context.cancelled()


def _version() -> str:
    try:
        return version("mltcp")
    except PackageNotFoundError:
        return "unknown"
