"""The client of the placement service, used by the command line and by the agents of jobs.

gRPC is imported when a client is made, so that importing this module is cheap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import parse_flag
from mltcp.core.trusted_directory import UnsafeDirectoryError, account_number, check_trusted_directory
from placement.client.connection_failure import why_unreachable
from placement.service.protocol.connection import (
    PLAIN_TEXT_TOKENS,
    SOCKET_OWNER,
    TOKEN,
    default_address,
)

if TYPE_CHECKING:
    import grpc

    from placement.service.protocol import placement_pb2 as pb

CERTIFICATE = "MLTCP_PLACEMENT_CA"
"""Environment variable with a PEM file of certificate authorities; if it is set, the client uses TLS."""

IDENTITY = "MLTCP_PLACEMENT_IDENTITY"
"""Environment variable with a PEM file that holds the client's own certificate and key, for mutual TLS."""

TIMEOUT_S = 10.0

_USAGE_CODES = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNAUTHENTICATED", "PERMISSION_DENIED")


class ServiceError(MltcpError):
    """The service refused a call, or did not answer.

    Attributes:
        code: name of the gRPC status code.
        field: the offending field of the request; empty if there is none.
    """

    def __init__(self, message: str, code: str, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class RefusedError(ServiceError, UsageError):
    """The service refused an invalid request: an unknown name, or a malformed or contradictory value."""


class Client:
    """A connection to the service, and a context manager. Every call may raise `ServiceError`.

    Args:
        address: ``unix:/path`` or ``host:port``; None: ``MLTCP_PLACEMENT``, or the user's own service.
        token: sent with every call; None: ``MLTCP_PLACEMENT_TOKEN``.
        certificate: PEM file; None: ``MLTCP_PLACEMENT_CA``. Without either, the connection is not encrypted.
        identity: PEM file with this client's certificate and key, for a service that asks for one; None:
            ``MLTCP_PLACEMENT_IDENTITY``.
        timeout_s: of each call.
        plain_text_tokens: send the token over TCP without TLS too; None: as ``MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS`` says.
        socket_owner: name or number of the account that runs the service at a Unix socket, if it is neither this one
            nor root; None: ``MLTCP_PLACEMENT_SOCKET_OWNER``.

    Raises:
        UsageError: the address or a file cannot be used, an identity is given without TLS, the token would be sent in
            clear text, or another account controls the directory of the socket.
        ServiceError: the directory of the socket does not exist.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        certificate: Path | None = None,
        identity: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        plain_text_tokens: bool | None = None,
        socket_owner: str | None = None,
    ) -> None:
        parsed = Address.parse(address) if address else default_address()
        self.address = str(parsed)
        self._token = os.environ.get(TOKEN, "") if token is None else token
        self._timeout_s = timeout_s
        certificate = certificate or _path_in(CERTIFICATE)
        identity = identity or _path_in(IDENTITY)
        if parsed.path is not None:
            _check_socket(parsed.path, socket_owner)
        elif self._token and certificate is None:
            _check_plain_text(self.address, plain_text_tokens)
        self._endpoint = _Endpoint(parsed, certificate, identity)
        self._channel = _channel(self.address, certificate, identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and all of its streams."""
        self._channel.close()

    # ------------------------------------------------------------------------------------------------ the cluster

    def register_servers(self, servers: Sequence[pb.Server]) -> int:
        """Register servers; returns the number of new ones."""
        return int(self.call("RegisterServers", self._pb.RegisterServersRequest(servers=servers)).added)

    def change_servers(self, names: Sequence[str], state: int, reason: str = "") -> int:
        """Take servers, or all below switches, out of use or into use again; returns the number of those changed."""
        request = self._pb.ChangeServersRequest(names=names, state=state, reason=reason)
        return int(self.call("ChangeServers", request).changed)

    def register_links(self, links: Sequence[pb.Link]) -> int:
        """Register uplinks of switches; returns the number of new ones."""
        return int(self.call("RegisterLinks", self._pb.RegisterLinksRequest(links=links)).added)

    # --------------------------------------------------------------------------------------------------- the jobs

    def register_job(self, job: pb.Job) -> pb.JobStatus:
        """Register a job without requesting a placement."""
        return self.call("RegisterJob", self._pb.RegisterJobRequest(job=job))

    def submit(self, job: pb.Job) -> pb.JobStatus:
        """Register a job and have it placed as soon as it fits; repeated calls with the same job have no effect."""
        return self.call("Submit", self._pb.SubmitRequest(job=job))

    def place(self, job_id: str, policy: str = "") -> pb.JobStatus:
        """Place a job now."""
        return self.call("Place", self._pb.PlaceRequest(job_id=job_id, policy=policy))

    def release(self, job_id: str, reason: str = "", failed: bool = False) -> pb.JobStatus:
        """End a job."""
        return self.call("Release", self._pb.ReleaseRequest(job_id=job_id, reason=reason, failed=failed))

    def requeue(self, job_id: str, reason: str = "") -> pb.JobStatus:
        """Stop an elastic job at the end of a step; it goes on with the slots that it is given next."""
        return self.call("Requeue", self._pb.RequeueRequest(job_id=job_id, reason=reason))

    def promote(self, back: bool = False) -> pb.DecisionStatus:
        """Make the shadow the policy that decides for all jobs; `back`: that of the service's start."""
        return self.call("Promote", self._pb.PromoteRequest(back=back))

    def job(self, job_id: str) -> pb.JobStatus:
        """The status of a job."""
        return self.status([job_id], cluster=False).jobs[0]

    def status(
        self, job_ids: Sequence[str] = (), *, unended: bool = False, cluster: bool = True
    ) -> pb.StatusReply:
        """The status of jobs (all if none are named), servers and links; the pages of the answer are combined."""
        request = self._pb.StatusRequest(job_ids=job_ids, unended=unended, without_cluster=not cluster)
        reply: pb.StatusReply = self.call("Status", request)
        links = list(reply.links)
        del reply.links[:]
        _extend_links(reply, links)
        page = reply
        while page.next_page_token:
            request.page_token = page.next_page_token
            page = self.call("Status", request)
            reply.servers.extend(page.servers)
            _extend_links(reply, page.links)
            reply.jobs.extend(page.jobs)
        reply.next_page_token = ""
        return reply

    def ratios(self) -> pb.RatiosReply:
        """The service's table of contention ratios, with those that were measured on running jobs."""
        return self.call("Ratios", self._pb.RatiosRequest())

    # --------------------------------------------------------------------------------- profiles, scores, time shifts

    def score(
        self,
        job_ids: Sequence[str] = (),
        profiles: Sequence[pb.Profile] = (),
        *,
        link: str = "",
        capacity_bps: int = 0,
    ) -> pb.ScoreReply:
        """The compatibility score of jobs on a link, given by its name or capacity."""
        request = self._pb.ScoreRequest(
            job_ids=job_ids, profiles=profiles, link=link, capacity_bps=capacity_bps
        )
        return self.call("Score", request)

    def time_shifts(self, job_ids: Sequence[str] = ()) -> Sequence[pb.TimeShift]:
        """The time shifts of these jobs, or of all jobs that have one."""
        request = self._pb.TimeShiftsRequest(job_ids=job_ids)
        shifts: list[pb.TimeShift] = []
        while True:
            page = self.call("TimeShifts", request)
            shifts += page.shifts
            if not page.next_page_token:
                return shifts
            request.page_token = page.next_page_token

    def explain(self, job_id: str) -> pb.ExplainReply:
        """The reasons for a job's placement, or for the lack of one."""
        return self.call("Explain", self._pb.ExplainRequest(job_id=job_id))

    def put_profile(self, job_id: str, profile: pb.Profile) -> pb.JobStatus:
        """Replace a job's profile."""
        return self.call("PutProfile", self._pb.PutProfileRequest(job_id=job_id, profile=profile))

    def report_drift(self, job_id: str, number: int, began_ns: int, duration_ns: int) -> int:
        """Report when an iteration of a job without an agent began to send; returns how long it should wait, in ns."""
        request = self._pb.ReportDriftRequest(
            job_id=job_id, number=number, began_ns=began_ns, duration_ns=duration_ns
        )
        return int(self.call("ReportDrift", request).delay.delay_ns)

    # ----------------------------------------------------------------------------------------------------- agents

    def clock_ns(self) -> int:
        """The service's clock."""
        return int(self.call("Clock", self._pb.ClockRequest()).now_ns)

    def attach(self, messages: Iterable[pb.AgentMessage]) -> Iterator[pb.Decision]:
        """Open the stream of an agent: sends `messages`, a Hello first, and yields the service's decisions.

        The stream ends when the service, or this client, is closed. `messages` is iterated on another thread.
        """
        stream = self._stub.Attach(iter(messages), metadata=self._metadata)
        try:
            with _translated(self._endpoint):
                yield from stream
        finally:
            stream.cancel()

    def call(self, method: str, request: Any) -> Any:
        """Call a method of the service by name.

        Raises:
            ServiceError: the service refused, or did not answer.
        """
        with _translated(self._endpoint):
            return getattr(self._stub, method)(request, timeout=self._timeout_s, metadata=self._metadata)

    @cached_property
    def _pb(self) -> Any:
        from placement.service.protocol import placement_pb2

        return placement_pb2

    @cached_property
    def _stub(self) -> Any:
        from placement.service.protocol import placement_pb2_grpc

        return placement_pb2_grpc.PlacementStub(self._channel)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()


def _extend_links(reply: pb.StatusReply, links: Iterable[pb.LinkStatus]) -> None:
    """Add the links of a page; the jobs of one link may be spread over several entries."""
    for each in links:
        if reply.links and reply.links[-1].name == each.name:
            reply.links[-1].jobs.extend(each.jobs)
        else:
            reply.links.append(each)


def _check_socket(path: Path, owner: str | None) -> None:
    """Check that the socket at `path` is the service's: its directory may not be controlled by another account."""
    text = os.environ.get(SOCKET_OWNER, "") if owner is None else owner
    number = account_number(text, SOCKET_OWNER if owner is None else "--socket-owner") if text else None
    try:
        check_trusted_directory(path.parent, number)
    except UnsafeDirectoryError as error:
        raise UnsafeDirectoryError(
            f"{error}; if another account runs the service there, name it by --socket-owner or {SOCKET_OWNER}"
        ) from None
    except MltcpError:
        raise ServiceError(f"unix:{path}: no placement service answers there", "UNAVAILABLE") from None


def _check_plain_text(address: str, permitted: bool | None) -> None:
    """Raise UsageError unless a token may be sent to a TCP address without TLS."""
    if permitted is None:
        permitted = parse_flag(os.environ.get(PLAIN_TEXT_TOKENS, ""), field=PLAIN_TEXT_TOKENS)
    if not permitted:
        raise UsageError(
            f"token: expected unix:/path or TLS (--ca or {CERTIFICATE}), so that it is not sent in clear text, "
            f"or --plain-text-tokens or {PLAIN_TEXT_TOKENS}=1, got {address}"
        )


def _path_in(variable: str) -> Path | None:
    given = os.environ.get(variable, "")
    return Path(given) if given else None


def _channel(address: str, roots: Path | None, identity: Path | None) -> grpc.Channel:
    # What gRPC prints of a connection that fails says less than the error does, and is not a line of this program.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    from placement.service.protocol.connection import keepalive_options

    options = [("grpc.enable_http_proxy", 0), *keepalive_options()]
    if roots is None:
        if identity is not None:
            raise UsageError(f"identity: expected TLS (--ca or {CERTIFICATE}) too, got {identity} without it")
        return grpc.insecure_channel(address, options)
    # One file for both: what reads the key skips the certificates, and the other way round.
    own = None if identity is None else _content(identity)
    credentials = grpc.ssl_channel_credentials(_content(roots), own, own)
    if address.startswith("unix:"):
        options.append(("grpc.ssl_target_name_override", "localhost"))  # type: ignore[arg-type]
    return grpc.secure_channel(address, credentials, options)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


@dataclass(frozen=True)
class _Endpoint:
    """Where a client connects to, and by which certificates."""

    address: Address
    roots: Path | None
    identity: Path | None


@contextmanager
def _translated(endpoint: _Endpoint) -> Iterator[None]:
    """Convert gRPC's errors to those of the project."""
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        raise _error(endpoint, error) from None
    except ValueError as error:  # a closed channel
        raise ServiceError(f"{endpoint.address}: {error}", "CANCELLED") from None


def _error(endpoint: _Endpoint, error: Any) -> ServiceError:
    code, details = error.code().name, (error.details() or "").splitlines()
    trailing = dict(error.trailing_metadata() or ())
    field = str(trailing.get("field", ""))
    address = endpoint.address
    if code == "UNAVAILABLE":
        why = why_unreachable(address, endpoint.roots, endpoint.identity)
        return ServiceError(f"{address}: {why}", code)
    if code == "DEADLINE_EXCEEDED":
        return ServiceError(f"{address}: the placement service does not answer in time", code)
    message = details[0] if details else code
    kind = RefusedError if code in _USAGE_CODES else ServiceError
    return kind(message, code, field)
