"""Why a service could not be reached: gRPC tells only that it could not, so the connection is tried once by itself."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from mltcp.core.address import Address
from mltcp.core.one_line import one_line

NOBODY = "no placement service answers there"

_MOST_S = 1.0
"""For each of two connections, and each answer."""

_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME, _OTHER_ADDRESS = 62, 64
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_VERSIONS = ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "TLSV1_ALERT_PROTOCOL_VERSION")
_PLAIN = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")


def why_unreachable(address: Address, roots: Path | None, identity: Path | None) -> str:
    """Why no service was reached at an address, in a line.

    Args:
        address: of the service; at a Unix socket nothing is tried.
        roots: the authorities by which the client knows the service's certificate; None: without TLS.
        identity: the client's own certificate and key.
    """
    if address.path is not None:
        return NOBODY
    try:
        return _with_tls(address, roots, identity) if roots is not None else _without_tls(address)
    except ConnectionRefusedError:
        return f"{NOBODY}: connection refused"
    except socket.gaierror:
        return f"{NOBODY}: the host {address.host!r} is unknown"
    except OSError as error:
        return f"{NOBODY}: {one_line(error.strerror or str(error) or 'time-out')}"


def _without_tls(address: Address) -> str:
    trying = _context()
    try:
        with _handshake(address, trying):
            pass
    except ssl.SSLError as error:
        if error.reason not in (*_PLAIN, None) and not isinstance(error, ssl.SSLEOFError):
            return "the service there expects TLS (--ca)"
        return NOBODY
    except (TimeoutError, ConnectionError) as error:
        if isinstance(error, ConnectionRefusedError):
            raise
        return NOBODY
    return "the service there expects TLS (--ca)"


def _with_tls(address: Address, roots: Path, identity: Path | None) -> str:
    trying = _context()
    try:
        trying.load_verify_locations(roots)
    except (ssl.SSLError, OSError):
        return f"{roots}: expected certificates of authorities, PEM, got none"
    if identity is not None:
        try:
            trying.load_cert_chain(identity)
        except (ssl.SSLError, OSError):
            return f"{identity}: expected a certificate and its key, PEM, got others"
    trying.verify_mode, trying.check_hostname = ssl.CERT_REQUIRED, True
    try:
        with _handshake(address, trying) as connection:
            return _after_handshake(connection, identity)
    except ssl.SSLCertVerificationError as error:
        return _unverified(error, address, trying, roots)
    except ssl.SSLError as error:
        return _failed(error, identity)
    except (ConnectionResetError, BrokenPipeError, TimeoutError):
        return "the service there does not answer in TLS: try without --ca"


def _after_handshake(connection: ssl.SSLSocket, identity: Path | None) -> str:
    """What is wrong with a connection that both sides seemed to accept: under TLS 1.3 the service's alert comes now."""
    try:
        if not connection.recv(1):
            return _refused(identity)
    except TimeoutError:
        return f"{NOBODY}: something else answers in TLS"
    except ssl.SSLError as error:
        return _failed(error, identity)
    except OSError:
        return _refused(identity)
    if connection.selected_alpn_protocol() != "h2":
        return f"{NOBODY}: something else answers in TLS"
    return NOBODY


def _failed(error: ssl.SSLError, identity: Path | None) -> str:
    reason = error.reason or ""
    if reason in _VERSIONS:
        return "the service there speaks no version of TLS that this client does (1.2 or 1.3)"
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason:
        return _refused(identity)
    if reason in _PLAIN or isinstance(error, ssl.SSLEOFError):
        return "the service there does not answer in TLS: try without --ca"
    return f"TLS failed: {one_line(reason or str(error))[:200]}"


def _refused(identity: Path | None) -> str:
    if identity is None:
        return "the service there expects a certificate of the client (--identity)"
    return f"the service there does not accept the certificate in {identity}: it is expired, or of another authority"


def _unverified(
    error: ssl.SSLCertVerificationError, address: Address, trying: ssl.SSLContext, roots: Path
) -> str:
    code = error.verify_code
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        trying.check_hostname = False
        names = ""
        with suppress(OSError), _handshake(address, trying) as connection:
            names = _names(connection.getpeercert() or {})
        return f"the certificate of the service there is not for {address.host}" + (
            names and f", but for {names}"
        )
    if code == _EXPIRED:
        return "the certificate of the service there has expired, by the clock of this host"
    if code == _NOT_YET_VALID:
        return "the certificate of the service there is not valid yet, by the clock of this host"
    if code in _UNKNOWN_AUTHORITY:
        return f"the certificate of the service there is of no authority in {roots}"
    return f"the certificate of the service there is not accepted: {one_line(error.verify_message)[:200]}"


def _names(certificate: dict[str, Any]) -> str:
    names = [str(value) for _, value in certificate.get("subjectAltName", ())]
    return one_line(", ".join(names))[:200]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # as gRPC does
    context.set_alpn_protocols(["h2"])
    return context


def _handshake(address: Address, context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection((address.host, address.port), _MOST_S)
    try:
        return context.wrap_socket(connection, server_hostname=address.host)
    except BaseException:
        connection.close()
        raise
