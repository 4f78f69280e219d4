"""Access control: TLS, bearer tokens, and the rule that an unprotected service listens on local addresses only."""

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
    """TLS and token settings.

    Attributes:
        certificate: a PEM file with the server's certificate chain; None: no TLS.
        key: a PEM file with the certificate's private key.
        tokens: a file with one accepted token a line; None: calls need no token.
    """

    certificate: Path | None = None
    key: Path | None = None
    tokens: Path | None = None

    def check(self, address: Address) -> None:
        """Raise `UsageError` if other hosts could connect without TLS, or only one of certificate and key is given."""
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--certificate and --key: expected both or neither, got one")
        if self.certificate is None and not address.is_local:
            raise UsageError(
                f"--address: expected unix:/path or a loopback address without --certificate and --key, got {address}"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """The credentials for TLS; None without TLS.

        Raises:
            UsageError: a file cannot be read.
        """
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials([(_read(self.key), _read(self.certificate))])

    def digests(self) -> frozenset[bytes] | None:
        """The digests of the accepted tokens; None if calls need no token.

        Raises:
            UsageError: the file cannot be read, is accessible to all users, or has no token or a short one.
        """
        if self.tokens is None:
            return None
        text = _read(self.tokens).decode(errors="replace")
        if self.tokens.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise UsageError(
                f"--tokens {self.tokens}: all users have access to the file: chmod o-rw {self.tokens}"
            )
        lines = [line.split("#")[0].strip() for line in text.splitlines()]
        tokens = [line for line in lines if line]
        if not tokens or min(map(len, tokens)) < _LEAST_TOKEN:
            raise UsageError(
                f"--tokens {self.tokens}: expected one or more tokens of {_LEAST_TOKEN} characters or more, one a line"
            )
        return frozenset(digest(token) for token in tokens)


def digest(token: str) -> bytes:
    """The digest under which a token is stored and compared."""
    return hashlib.sha256(token.encode()).digest()


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Rejects calls without an accepted bearer token, except health checks."""

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
