"""The gRPC servicer: maps calls of placement.proto to the service, and its errors to statuses; rights of callers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc

from mltcp.core.errors import MltcpError
from mltcp.core.extras import installed_version
from mltcp.core.one_line import one_line
from placement.service.agents import AgentSession
from placement.service.operations import ServiceOperations
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc
from placement.service.protocol.checks import MOST_IDS, ErrorCode, RequestError, check_count, invalid
from placement.service.protocol.pages import from_number, link_statuses, page_of, place_in
from placement.service.protocol.security import OPERATOR, AcceptedTokens, Caller, Role
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import OutOfUse, Registry
from placement.service.state.store import StoreUnwritableError

# ------------------------------------------------------------------------------------------------- rights of callers


def may_change(caller: Caller, job: JobRecord) -> bool:
    """Whether the caller may change a job, and see all of it."""
    if caller.role is Role.AGENT:
        return caller.job == job.number
    return caller.is_operator or (bool(job.owner) and job.owner == caller.name)


def check_operator(caller: Caller, method: str) -> None:
    """Raise `RequestError` unless the caller is an operator."""
    if not caller.is_operator:
        raise _denied("authorization", f"expected an operator for {method}, got {caller}")


def check_job(caller: Caller, job: JobRecord, field: str) -> None:
    """Raise `RequestError` unless the caller may change the job."""
    if not may_change(caller, job):
        owner = "another user" if job.owner else "nobody in particular"
        raise _denied(field, f"expected a job of {caller}, got {job.id!r}, which belongs to {owner}")


def check_submission(caller: Caller, spec: pb.Job, known: JobRecord | None) -> None:
    """Check that a caller may register a job, which is `known` if its id is registered already.

    Raises:
        RequestError: the caller is an agent, or the job of this id belongs to somebody else.
    """
    if caller.role is Role.AGENT:
        raise _denied("authorization", f"expected an operator or a user for new jobs, got {caller}")
    if known is not None and not may_change(caller, known):
        raise _denied("job.id", f"expected a new id, or that of a job of {caller}, got {spec.id!r}")


def visible_status(caller: Caller, job: JobRecord, status: pb.JobStatus) -> pb.JobStatus:
    """The part of a job's status that the caller may see: of others' jobs, what shows which slots are taken."""
    if may_change(caller, job):
        return status
    return pb.JobStatus(
        id=status.id, state=status.state, places=status.places, links=status.links, owner=status.owner
    )


def _denied(field: str, text: str) -> RequestError:
    return RequestError(ErrorCode.DENIED, field, text)


# ------------------------------------------------------------------------------------------------------------- calls


CODES = {
    ErrorCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ErrorCode.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.DENIED: grpc.StatusCode.PERMISSION_DENIED,
}

_SETTLE_S = 0.1
_HELLO_S = 10.0
_MOST_DETAILS = 2000
_SERVERS, _LINKS = "s", "l"
_PAGED = _SERVERS + _LINKS

CALLS_OF_USER = 1000
CALLS_OF_AGENT = 16
"""How many calls, streams included, a user and the agent of a job may have in progress."""

_IN_USE = OutOfUse(pb.IN_USE)

_Reply = TypeVar("_Reply")
_Context = grpc.aio.ServicerContext


async def abort(context: _Context, error: MltcpError) -> NoReturn:
    """End a call with the status of an error, and the offending field as trailing metadata."""
    text = one_line(str(error))
    if len(text) > _MOST_DETAILS:  # gRPC ends a call whose metadata is too long without any
        text = text[:_MOST_DETAILS] + "..."
    if isinstance(error, RequestError):
        context.set_trailing_metadata((("field", error.field),))
        await context.abort(CODES[error.code], text)
    full = isinstance(error, StoreUnwritableError)
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.INTERNAL, text)


def answering(
    method: Callable[[Any, Any, Caller], Awaitable[_Reply]],
) -> Callable[[Any, Any, _Context], Awaitable[_Reply]]:
    """Decorator: turns a method of a request and its caller into a gRPC handler that reports errors as a status."""

    async def answer(servicer: Any, request: Any, context: _Context) -> _Reply:
        try:
            caller = servicer.caller(context)
            with servicer.in_progress(caller):
                return await method(servicer, request, caller)
        except MltcpError as error:
            servicer.count_refusal(error)
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
        self._in_progress: Counter[Caller] = Counter()

    @contextmanager
    def in_progress(self, caller: Caller) -> Iterator[None]:
        """Count a call of a caller while it is answered. Raises `RequestError`: it has too many already."""
        most = {Role.USER: CALLS_OF_USER, Role.AGENT: CALLS_OF_AGENT}.get(caller.role)
        if most is not None and self._in_progress[caller] >= most:
            raise RequestError(
                ErrorCode.FULL,
                "authorization",
                f"expected at most {most} calls of {caller} at a time, got one more",
            )
        self._in_progress[caller] += 1
        try:
            yield
        finally:
            self._in_progress[caller] -= 1
            if not self._in_progress[caller]:
                del self._in_progress[caller]

    def count_refusal(self, error: MltcpError) -> None:
        """Count a call that ends with an error, by its kind."""
        self._service.context.counts.refused[
            error.code.value if isinstance(error, RequestError) else "failed"
        ] += 1

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
        return pb.RegisterServersReply(added=await self._service.cluster.register_servers(request.servers))

    @answering
    async def ChangeServers(self, request: pb.ChangeServersRequest, caller: Caller) -> pb.ChangeServersReply:
        """See placement.proto."""
        check_operator(caller, "ChangeServers")
        changed = await self._service.cluster.change_servers(request.names, request.state, request.reason)
        return pb.ChangeServersReply(changed=changed)

    @answering
    async def RegisterLinks(self, request: pb.RegisterLinksRequest, caller: Caller) -> pb.RegisterLinksReply:
        """See placement.proto."""
        check_operator(caller, "RegisterLinks")
        return pb.RegisterLinksReply(added=await self._service.cluster.register_links(request.links))

    @answering
    async def RegisterJob(self, request: pb.RegisterJobRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_submission(caller, request.job)
        return await self._service.register_job(request.job, caller.name)

    @answering
    async def Submit(self, request: pb.SubmitRequest, caller: Caller) -> pb.JobStatus:
        """See placement.proto."""
        self._check_submission(caller, request.job)
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
        check_count(request.job_ids, MOST_IDS, "job_ids")
        service = self._service
        reply = pb.StatusReply(
            policy=service.context.rules.policy,
            lease_ns=round(service.context.rules.lease_s * 1e9),
            version=installed_version(),
            refusal=service.context.store.refusal(),
        )
        decisions = service.decisions()
        if decisions is not None and not request.page_token:
            reply.decisions.CopyFrom(decisions)
        self._fill(reply, request, caller)
        return reply

    def _fill(self, reply: pb.StatusReply, request: pb.StatusRequest, caller: Caller) -> None:
        """Add servers, links and jobs to a reply, from where the page begins to where it is full."""
        kind, first = place_in(request.page_token, _PAGED)
        if not request.page_token and not request.without_cluster:
            kind = _SERVERS
        if kind == _SERVERS:
            servers, rest = page_of(from_number(self._servers(), first))
            reply.servers.extend(servers)
            if rest is not None:
                reply.next_page_token = f"{_SERVERS}{rest}"
                return
            kind, first = _LINKS, 0
        if kind == _LINKS:
            links, rest = page_of(from_number(self._links(), first))
            reply.links.extend(links)
            if rest is not None:
                reply.next_page_token = f"{_LINKS}{rest}"
                return
            first = 0
        jobs, rest = page_of(
            (number, visible_status(caller, job, self._service.status(job.id)))
            for number, job in self._jobs_from(request, first)
        )
        reply.jobs.extend(jobs)
        reply.next_page_token = "" if rest is None else str(rest)

    @answering
    async def Ratios(self, request: pb.RatiosRequest, caller: Caller) -> pb.RatiosReply:
        """See placement.proto."""
        check_operator(caller, "Ratios")
        return self._service.ratios()

    @answering
    async def Promote(self, request: pb.PromoteRequest, caller: Caller) -> pb.DecisionStatus:
        """See placement.proto."""
        check_operator(caller, "Promote")
        return await self._service.promote(request.back)

    @answering
    async def Score(self, request: pb.ScoreRequest, caller: Caller) -> pb.ScoreReply:
        """See placement.proto."""
        check_count(request.job_ids, MOST_IDS, "job_ids")
        for place, job_id in enumerate(request.job_ids):
            self._check_job(caller, job_id, f"job_ids[{place}]")
        return await self._service.score(request)

    @answering
    async def TimeShifts(self, request: pb.TimeShiftsRequest, caller: Caller) -> pb.TimeShiftsReply:
        """See placement.proto."""
        check_count(request.job_ids, MOST_IDS, "job_ids")
        for place, job_id in enumerate(request.job_ids):
            self._check_job(caller, job_id, f"job_ids[{place}]")
        _, first = place_in(request.page_token)
        shifts = self._service.time_shifts(request.job_ids)
        seen = (each for each in shifts if may_change(caller, self._jobs[each.job_id]))
        page, rest = page_of(from_number(seen, first))
        return pb.TimeShiftsReply(shifts=page, next_page_token="" if rest is None else str(rest))

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
            caller = self.caller(context)
            with self.in_progress(caller):
                async for decision in self._attached(caller, request_iterator, context):
                    yield decision
        except MltcpError as error:
            self.count_refusal(error)
            await abort(context, error)

    async def _attached(
        self, caller: Caller, request_iterator: AsyncIterator[pb.AgentMessage], context: _Context
    ) -> AsyncIterator[pb.Decision]:
        """The decisions for an agent, until its stream or its job ends. Raises `MltcpError`: it is refused."""
        session = await self._hello(caller, request_iterator)
        reader = asyncio.ensure_future(self._read(session, request_iterator))
        orderly = False
        try:
            while (decision := await session.next()) is not None:
                yield decision
            if reader.done() and (failure := reader.exception()) is not None:
                raise failure
            orderly = reader.done() and not await _is_cancelled(context)
        finally:
            reader.cancel()
            self._service.agents.leave(session, orderly)

    async def _hello(self, caller: Caller, messages: AsyncIterator[pb.AgentMessage]) -> AgentSession:
        try:
            async with asyncio.timeout(_HELLO_S):
                first = await anext(aiter(messages), None)
        except TimeoutError:
            raise invalid("hello", f"expected within {_HELLO_S:g} s, got nothing") from None
        if first is None or not first.HasField("hello"):
            raise invalid("hello", "expected as the first message, got another or none")
        self._check_job(caller, first.hello.job_id, "hello.job_id")
        return self._service.agents.attach(first.hello)

    async def _read(self, session: AgentSession, messages: AsyncIterator[pb.AgentMessage]) -> None:
        try:
            async for message in messages:
                await self._service.agent_message(session, message)
        finally:
            session.end()

    @property
    def _registry(self) -> Registry:
        return self._service.context.registry

    @property
    def _jobs(self) -> dict[str, JobRecord]:
        return self._registry.jobs

    def _check_submission(self, caller: Caller, spec: pb.Job) -> None:
        """Raise `RequestError` if the caller may not register this job, or has too many that are not over."""
        known = self._jobs.get(spec.id)
        check_submission(caller, spec, known)
        most = self._service.context.rules.jobs_of_user
        if known is None and caller.role is Role.USER and self._registry.unended_of(caller.name) >= most:
            raise RequestError(
                ErrorCode.FULL,
                "job",
                f"expected at most {most} jobs of {caller} that are not over, got one more",
            )

    def _check_job(self, caller: Caller, job_id: str, field: str = "job_id") -> None:
        """Raise `RequestError` if the job is unknown, or the caller may not change it."""
        check_job(caller, self._registry.job(job_id, field), field)

    def _jobs_from(self, request: pb.StatusRequest, first: int) -> Iterator[tuple[int, JobRecord]]:
        """The requested jobs from a number on: their place in the request, or else the order of registration."""
        registry = self._registry
        if request.job_ids:
            for place in range(first, len(request.job_ids)):
                yield place, registry.job(request.job_ids[place], f"job_ids[{place}]")
            return
        for job in (registry.unended if request.unended else registry.jobs).values():
            if job.number >= first:
                yield job.number, job

    def _servers(self) -> Iterator[pb.ServerStatus]:
        registry = self._registry
        for number, server in registry.servers_in_cluster():
            why = registry.out_of_use.get(number, _IN_USE)
            yield pb.ServerStatus(
                server=server,
                gpus_free=registry.gpus.free_of(number),
                cpu_slots_free=registry.cpu_slots.free_of(number),
                state=why.state,
                reason=why.reason,
            )

    def _links(self) -> Iterator[pb.LinkStatus]:
        registry = self._registry
        for name, link in registry.tree.links.items():
            jobs = tuple(registry.jobs_of.get(name, ()))
            yield from link_statuses(name, link.above, link.capacity_bps, jobs)


async def _is_cancelled(context: _Context) -> bool:
    """Whether the peer vanished; waits `_SETTLE_S`, because gRPC ends its message stream before it cancels the call."""
    deadline = time.monotonic() + _SETTLE_S
    while not context.cancelled() and time.monotonic() < deadline:
        await asyncio.sleep(_SETTLE_S / 10)
    return context.cancelled()
