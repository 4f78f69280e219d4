"""Who may talk to the service: everybody on this host who can reach its socket, and, elsewhere, whoever TLS and tokens
let in."""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from mltcp.core.address import Address
from mltcp.core.errors import UsageError

_LEAST_TOKEN = 16
_OPEN = ("/grpc.health.v1.Health/",)


@dataclass(frozen=True)
class Security:
    """How connections are protected.

    Attributes:
        certificate: a file with the server's certificate chain, PEM; None: no TLS.
        key: a file with its key.
        tokens: a file with a token on each line; None: none are asked for.
    """

    certificate: Path | None = None
    key: Path | None = None
    tokens: Path | None = None

    def check(self, address: Address) -> None:
        """Raises `UsageError` if others than this host could reach the service without TLS, or half of TLS is given."""
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--certificate and --key: both, or neither, are allowed")
        if self.certificate is None and not address.is_local:
            raise UsageError(
                f"--address {address}: other hosts can reach it: --certificate and --key are needed; without them,"
                " unix:/path and loopback addresses are allowed"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """For TLS; None without it.

        Raises:
            UsageError: a file cannot be read.
        """
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials([(_read(self.key), _read(self.certificate))])

    def digests(self) -> frozenset[bytes] | None:
        """Of the tokens that are accepted; None if none are asked for.

        Raises:
            UsageError: the file cannot be read, others can read it, or there is no token in it.
        """
        if self.tokens is None:
            return None
        text = _read(self.tokens).decode(errors="replace")
        if self.tokens.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise UsageError(f"--tokens {self.tokens}: all users can read it: chmod o-rw {self.tokens}")
        lines = [line.split("#")[0].strip() for line in text.splitlines()]
        tokens = [line for line in lines if line]
        if not tokens or min(map(len, tokens)) < _LEAST_TOKEN:
            raise UsageError(
                f"--tokens {self.tokens}: one or more lines with a token of {_LEAST_TOKEN} characters or more are"
                " allowed"
            )
        return frozenset(digest(token) for token in tokens)


def digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Lets only calls through that bring a token; asking for the service's health needs none."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        self._digests = digests

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN):
            return handler
        if self._knows(handler_call_details.invocation_metadata or ()):
            return handler
        return _denied(handler)

    def _knows(self, metadata: Any) -> bool:
        given = next((value for key, value in metadata if key == "authorization"), "")
        scheme, _, token = str(given).partition(" ")
        found = digest(token.strip())
        known = [hmac.compare_digest(found, each) for each in self._digests]
        return scheme.lower() == "bearer" and any(known)


def _denied(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """A handler of the same kind that refuses."""

    async def deny(_: Any, context: grpc.aio.ServicerContext) -> None:
        context.set_trailing_metadata((("field", "authorization"),))
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "authorization is missing or unknown: 'Bearer TOKEN' is needed"
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
