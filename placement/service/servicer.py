"""The gRPC servicer: maps calls of placement.proto to the service, and its errors to gRPC statuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, TypeVar

import grpc

from mltcp.core.errors import MltcpError
from placement.service.access import (
    check_job,
    check_operator,
    check_submission,
    may_change,
    visible_status,
)
from placement.service.agents.sessions import AgentSession
from placement.service.operations import ServiceOperations
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc
from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.protocol.tokens import OPERATOR, AcceptedTokens, Caller
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import OutOfUse

PAGE = 1000
"""The number of jobs in one reply of Status."""

CODES = {
    ErrorCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ErrorCode.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.DENIED: grpc.StatusCode.PERMISSION_DENIED,
}

_SETTLE_S = 0.1
_IN_USE = OutOfUse(pb.IN_USE)

_Reply = TypeVar("_Reply")
_Context = grpc.aio.ServicerContext


async def abort(context: _Context, error: MltcpError) -> NoReturn:
    """End a call with the status of an error, and the offending field as trailing metadata."""
    if isinstance(error, RequestError):
        context.set_trailing_metadata((("field", error.field),))
        await context.abort(CODES[error.code], str(error))
    await context.abort(grpc.StatusCode.INTERNAL, str(error))


def answering(
    method: Callable[[Any, Any, Caller], Awaitable[_Reply]],
) -> Callable[[Any, Any, _Context], Awaitable[_Reply]]:
    """Decorator: turns a method of a request and its caller into a gRPC handler that reports errors as a status."""

    async def answer(servicer: Any, request: Any, context: _Context) -> _Reply:
        try:
            return await method(servicer, request, servicer.caller(context))
        except MltcpError as error:
            await abort(context, error)

    answer.__doc__ = method.__doc__
    return answer


class PlacementServicer(pb_grpc.PlacementServicer):
    """Implements the service of placement.proto, which documents the methods.

    Args:
        service: carries out the calls.
        tokens: tells the callers apart; None: every caller is an operator.
    """

    def __init__(self, service: ServiceOperations, tokens: AcceptedTokens | None = None) -> None:
        self._service = service
        self._tokens = tokens

    def caller(self, context: _Context) -> Caller:
        """The caller of a call. Raises `RequestError` if it has no accepted token."""
        if self._tokens is None:
            return OPERATOR
        caller = self._tokens.caller(context.invocation_metadata() or ())
        if caller is None:  # `TokenInterceptor` lets no such call through
            raise RequestError(ErrorCode.DENIED, "authorization", "expected an accepted token, got none")
        return caller

    @answering
    async def RegisterServers(
        self, request: pb.RegisterServersRequest, caller: Caller
    ) -> pb.RegisterServersReply:
        """See placement.proto."""
        check_operator(caller, "RegisterServers")
        return pb.RegisterServersReply(added=await self._service.register_servers(request.servers))

    @answering
    async def ChangeServers(self, request: pb.ChangeServersRequest, caller: Caller) -> pb.ChangeServersReply:
        """See placement.proto."""
        check_operator(caller, "ChangeServers")
        changed = await self._service.change_servers(request.names, request.state, request.reason)
        return pb.ChangeServersReply(changed=changed)

    @answering
    async def RegisterLinks(self, request: pb.RegisterLinksRequest, caller: Caller) -> pb.RegisterLinksReply:
        """See placement.proto."""
        check_operator(caller, "RegisterLinks")
        return pb.RegisterLinksReply(added=await self._service.register_links(request.links))

    @answering
    async def RegisterJob(self, request: pb.RegisterJobRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        check_submission(caller, request.job, self._jobs.get(request.job.id))
        return await self._service.register_job(request.job, caller.name)

    @answering
    async def Submit(self, request: pb.SubmitRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        check_submission(caller, request.job, self._jobs.get(request.job.id))
        return await self._service.submit(request.job, caller.name)

    @answering
    async def Place(self, request: pb.PlaceRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return await self._service.place(request.job_id, request.policy)

    @answering
    async def Release(self, request: pb.ReleaseRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return await self._service.release(request.job_id, request.reason, request.failed)

    @answering
    async def Requeue(self, request: pb.RequeueRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return await self._service.requeue(request.job_id, request.reason)

    @answering
    async def Status(self, request: pb.StatusRequest, caller: Caller) -> pb.StatusReply:
        """See placement.proto."""
        service = self._service
        jobs, token = self._page(request)
        reply = pb.StatusReply(
            jobs=[visible_status(caller, job, service.status(job.id)) for job in jobs],
            policy=service.context.rules.policy,
            lease_ns=round(service.context.rules.lease_s * 1e9),
            version=_version(),
            next_page_token=token,
        )
        decisions = service.decisions()
        if decisions is not None and not request.page_token:
            reply.decisions.CopyFrom(decisions)
        if not request.without_cluster and not request.page_token:
            reply.servers.extend(self._servers())
            reply.links.extend(self._links())
        return reply

    @answering
    async def Ratios(self, request: pb.RatiosRequest, caller: Caller) -> pb.RatiosReply:
        """See placement.proto."""
        check_operator(caller, "Ratios")
        return self._service.ratios()

    @answering
    async def Score(self, request: pb.ScoreRequest, caller: Caller) -> pb.ScoreReply:
        """See placement.proto."""
        for place, job_id in enumerate(request.job_ids):
            self._check_job(caller, job_id, f"job_ids[{place}]")
        return await self._service.score(request)

    @answering
    async def TimeShifts(self, request: pb.TimeShiftsRequest, caller: Caller) -> pb.TimeShiftsReply:
        """See placement.proto."""
        for place, job_id in enumerate(request.job_ids):
            self._check_job(caller, job_id, f"job_ids[{place}]")
        shifts = self._service.time_shifts(request.job_ids)
        return pb.TimeShiftsReply(
            shifts=[each for each in shifts if may_change(caller, self._jobs[each.job_id])]
        )

    @answering
    async def Explain(self, request: pb.ExplainRequest, caller: Caller) -> pb.ExplainReply:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return self._service.explain(request.job_id)

    @answering
    async def PutProfile(self, request: pb.PutProfileRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return await self._service.put_profile(request.job_id, request.profile)

    @answering
    async def ReportDrift(self, request: pb.ReportDriftRequest, caller: Caller) -> pb.ReportDriftReply:
        """See placement.proto."""
        self._check_job(caller, request.job_id)
        return self._service.report_drift(request)

    async def Clock(self, request: pb.ClockRequest, context: _Context) -> pb.ClockReply:
        """See placement.proto."""
        return pb.ClockReply(now_ns=self._service.context.clock.now_ns())

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AgentMessage], context: _Context
    ) -> AsyncIterator[pb.Decision]:
        """See placement.proto."""
        try:
            session = await self._hello(self.caller(context), request_iterator)
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

    async def _hello(self, caller: Caller, messages: AsyncIterator[pb.AgentMessage]) -> AgentSession:
        first = await anext(aiter(messages), None)
        if first is None or not first.HasField("hello"):
            raise invalid("hello", "expected as the first message, got another or none")
        self._check_job(caller, first.hello.job_id, "hello.job_id")
        return self._service.agents.attach(first.hello)

    async def _read(self, session: AgentSession, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                await self._service.agent_says(session, message)
        finally:
            session.end()

    @property
    def _jobs(self) -> dict[str, JobRecord]:
        return self._service.context.registry.jobs

    def _check_job(self, caller: Caller, job_id: str, field: str = "job_id") -> None:
        """Raise `RequestError` if the job is unknown, or the caller may not change it."""
        check_job(caller, self._service.context.registry.job(job_id, field), field)

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
        statuses = []
        for number, server in registry.servers_in_cluster():
            why = registry.out_of_use.get(number, _IN_USE)
            statuses.append(
                pb.ServerStatus(
                    server=server,
                    gpus_free=registry.gpus.free_of(number),
                    cpu_slots_free=registry.cpu_slots.free_of(number),
                    state=why.state,
                    reason=why.reason,
                )
            )
        return statuses

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
