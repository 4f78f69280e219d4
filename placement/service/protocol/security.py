"""Access control: TLS, tokens of callers, and the rule that an unprotected service listens on local addresses only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from mltcp.core.address import Address
from mltcp.core.errors import UsageError

# ------------------------------------------------------------------------------------------------------------ tokens


LEAST_TOKEN = 16
_NAME = re.compile(r"[\w.@-]{1,64}")
_JOB_TOKEN = re.compile(r"job-(\d{1,18})-[0-9a-f]{64}")
_ALLOWED = "TOKEN, operator NAME TOKEN or user NAME TOKEN"


class Role(Enum):
    """The rights of a caller."""

    OPERATOR = "operator"
    """May do everything."""
    USER = "user"
    """May submit jobs, and change his own."""
    AGENT = "agent"
    """A job that the engine started: may change that job."""


@dataclass(frozen=True)
class Caller:
    """The identity of a caller.

    Attributes:
        role: its rights.
        name: the operator's or user's name, which the jobs that he registers belong to; empty: none.
        job: number of the job that an agent belongs to.
    """

    role: Role
    name: str = ""
    job: int | None = None

    def __str__(self) -> str:
        if self.role is Role.AGENT:
            return "the agent of a job"
        return f"{self.role.value} {self.name!r}" if self.name else f"an {self.role.value}"

    @property
    def is_operator(self) -> bool:
        """Whether it may do everything."""
        return self.role is Role.OPERATOR


OPERATOR = Caller(Role.OPERATOR)
"""The caller of a service without tokens, which only its own account or trusted clients can reach."""


class AcceptedTokens:
    """The tokens that a service accepts, and whose they are.

    Only digests are kept, and looked up: how long a look-up takes tells nothing about the token.

    Args:
        callers: the callers by the digest of their tokens.
        key: makes the tokens of agents; those made with it by an earlier service are accepted. None: a new one.
    """

    def __init__(self, callers: Mapping[bytes, Caller], key: bytes | None = None) -> None:
        self._callers = dict(callers)
        self._key = key or secrets.token_bytes(32)

    def token_of_job(self, number: int) -> str:
        """The token of the agent of the job with this number; valid as long as the key is."""
        mac = hmac.new(self._key, str(number).encode(), hashlib.sha256).hexdigest()
        return f"job-{number}-{mac}"

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller whose bearer token is in the metadata of a call; None if there is no accepted token."""
        given = next((value for key, value in metadata if key == "authorization"), "")
        scheme, _, rest = (given if isinstance(given, str) else "").partition(" ")
        token = rest.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        agent = _JOB_TOKEN.fullmatch(token)
        if agent is not None and hmac.compare_digest(token, self.token_of_job(int(agent[1]))):
            return Caller(Role.AGENT, job=int(agent[1]))
        return self._callers.get(_digest(token))


def tokens_from_file(path: Path, key: bytes | None = None) -> AcceptedTokens:
    """Read a tokens file: a line is ``TOKEN``, an operator's, or ``operator NAME TOKEN`` or ``user NAME TOKEN``.

    ``#`` begins a comment. A name may have several tokens. `key` is that of agents' tokens (`AcceptedTokens`).

    Raises:
        UsageError: the file cannot be read, is accessible to all users, or has no token, or a line that is none.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"--tokens {path}: all users have access to the file: chmod o-rw {path}")
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            where = f"--tokens {path}: line {number}"
            token, caller = _token(words, where)
            if _digest(token) in callers:
                raise UsageError(f"{where}: expected each token once, got one again")
            callers[_digest(token)] = caller
    if not callers:
        raise UsageError(
            f"--tokens {path}: expected one or more tokens of {LEAST_TOKEN} characters or more, one a line"
        )
    return AcceptedTokens(callers, key)


def _token(words: list[str], where: str) -> tuple[str, Caller]:
    """The token of a line and its caller; no message quotes a line, which may hold a token."""
    caller = OPERATOR
    if len(words) == 3:
        role = {each.value: each for each in (Role.OPERATOR, Role.USER)}.get(words[0])
        if role is None:
            raise UsageError(f"{where}: expected {_ALLOWED}, got another first word of three")
        if not _NAME.fullmatch(words[1]):
            raise UsageError(f"{where}: expected a name of 1 to 64 letters, digits and . @ - _, got another")
        caller = Caller(role, words[1])
    elif len(words) != 1:
        raise UsageError(f"{where}: expected {_ALLOWED}, got {len(words)} words")
    if len(words[-1]) < LEAST_TOKEN:
        raise UsageError(
            f"{where}: expected a token of {LEAST_TOKEN} characters or more, got {len(words[-1])}"
        )
    return words[-1], caller


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


# -------------------------------------------------------------------------------------------------- TLS and settings


_OPEN = "/grpc.health.v1.Health/Check"
"""What needs no token; Watch does, since its stream never ends."""


@dataclass(frozen=True)
class Security:
    """TLS and token settings.

    Attributes:
        certificate: a PEM file with the server's certificate chain; None: no TLS.
        key: a PEM file with the certificate's private key.
        tokens: a file with the accepted tokens (see `tokens_from_file`); None: calls need no token.
        plain_text_tokens: accept tokens over TCP without TLS, where they can be read on the way.
        client_ca: a PEM file with the authorities of clients' certificates; None: clients need none.
    """

    certificate: Path | None = None
    key: Path | None = None
    tokens: Path | None = None
    plain_text_tokens: bool = False
    client_ca: Path | None = None

    def check(self, address: Address) -> None:
        """Check that the settings protect a service at this address.

        Raises:
            UsageError: other hosts could connect without TLS, tokens would be sent in clear text, only one of
                certificate and key is given, or clients shall have certificates without TLS.
        """
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--certificate and --key: expected both or neither, got one")
        if self.client_ca is not None and self.certificate is None:
            raise UsageError("--client-ca: expected --certificate and --key too, got neither")
        if self.certificate is None and not address.is_local:
            raise UsageError(
                f"--address: expected unix:/path or a loopback address without --certificate and --key, got {address}"
            )
        in_clear_text = self.certificate is None and address.path is None
        if self.tokens is not None and in_clear_text and not self.plain_text_tokens:
            raise UsageError(
                "--tokens: expected unix:/path or --certificate and --key, so that no token is sent in clear text, "
                f"or --plain-text-tokens, got {address}"
            )

    def check_engine(self, address: Address, socket_mode: int) -> None:
        """Raise `UsageError` if others than the service's own account could have its engine run commands for them."""
        if self.tokens is not None:
            return
        if address.path is None:
            raise UsageError(
                "--engine: expected a Unix socket (--address unix:/path), or --tokens with TLS (--certificate and "
                f"--key), since every caller can run commands, got {address} without tokens"
            )
        if socket_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UsageError(
                "--engine: expected --socket-mode 600 or --tokens, since every caller can run commands, "
                f"got mode {socket_mode:o} without tokens"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """The credentials for TLS; None without TLS.

        Raises:
            UsageError: a file cannot be read.
        """
        if self.certificate is None or self.key is None:
            return None
        pair = (_read(self.key), _read(self.certificate))
        if self.client_ca is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials([pair], _read(self.client_ca), require_client_auth=True)

    def accepted_tokens(self, key: bytes | None = None) -> AcceptedTokens | None:
        """The accepted tokens; None if calls need no token. `key` is that of agents' tokens (`AcceptedTokens`).

        Raises:
            UsageError: the file cannot be used.
        """
        return None if self.tokens is None else tokens_from_file(self.tokens, key)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Rejects calls without an accepted bearer token, except a health check.

    Args:
        tokens: that are accepted.
        refused: called for each call that is rejected.
    """

    def __init__(self, tokens: AcceptedTokens, refused: Callable[[], None] = lambda: None) -> None:
        self._tokens, self._refused = tokens, refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method == _OPEN:
            return handler
        if self._tokens.caller(handler_call_details.invocation_metadata or ()) is not None:
            return handler
        self._refused()
        return _denied(handler)


def _denied(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """A handler with the same streaming types that ends every call as unauthenticated."""

    async def deny(_: Any, context: grpc.aio.ServicerContext) -> None:
        context.set_trailing_metadata((("field", "authorization"),))
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "authorization: expected 'Bearer TOKEN' with an accepted token"
        )

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(deny, handler.request_deserializer, handler.response_serializer)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
