"""Access control: TLS, tokens, and the rule that an unprotected service listens on local addresses only."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from placement.service.protocol.tokens import AcceptedTokens, tokens_from_file

_OPEN = "/grpc.health.v1.Health/Check"
"""What needs no token; Watch does, since its stream never ends."""


@dataclass(frozen=True)
class Security:
    """TLS and token settings.

    Attributes:
        certificate: a PEM file with the server's certificate chain; None: no TLS.
        key: a PEM file with the certificate's private key.
        tokens: a file with the accepted tokens (see `tokens`); None: calls need no token.
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
    """Rejects calls without an accepted bearer token, except a health check."""

    def __init__(self, tokens: AcceptedTokens) -> None:
        self._tokens = tokens

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
