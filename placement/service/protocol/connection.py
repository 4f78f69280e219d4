"""How clients reach the service: its default address, the environment variables of its clients, and pings of gRPC.

Pings find out about a peer that is gone without having closed its connection, such as a host without power. TCP alone
takes two hours for that if nothing is sent, and a quarter of an hour if something is.
"""

from __future__ import annotations

import os
from pathlib import Path

from mltcp.core.address import Address

VARIABLE = "MLTCP_PLACEMENT"
"""The environment variable with the address of the service."""

RESTARTS = "MLTCP_RESTARTS"
"""Environment variable by which the engine tells a run of a job how often the job was stopped and queued before."""

TOKEN = "MLTCP_PLACEMENT_TOKEN"
"""The environment variable with the token of the service."""

PLAIN_TEXT_TOKENS = "MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS"
"""The environment variable that permits to send the token over TCP without TLS."""

SOCKET_OWNER = "MLTCP_PLACEMENT_SOCKET_OWNER"
"""The environment variable with the account that runs the service, if it is neither the user's own nor root."""

_NAME = "placement.sock"


def default_address() -> Address:
    """The address in ``MLTCP_PLACEMENT``, or else a Unix socket in the user's runtime directory.

    Raises:
        UsageError: the variable holds no address, or the socket's path would be too long for one.
    """
    given = os.environ.get(VARIABLE, "")
    if given:
        return Address.parse(given, VARIABLE)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Address.parse(f"unix:{Path(runtime, 'mltcp', _NAME)}", "XDG_RUNTIME_DIR")
    return Address(path=_fallback_directory() / _NAME)


def _fallback_directory() -> Path:
    return Path("/run/mltcp" if os.getuid() == 0 else f"/tmp/mltcp-{os.getuid()}")


# ----------------------------------------------------------------------------------------------- connections of gRPC


Options = list[tuple[str, int]]

PING_S = 10.0
"""The time between two pings of a connection."""

ANSWER_S = 5.0
"""The time after which a connection whose ping is not answered is given up."""


UNUSED_S = 60.0
"""The time after which a service closes a connection on which no call is in progress; clients connect again."""

HANDSHAKE_S = 5.0
"""The time that a client has to say that it speaks TLS and HTTP/2."""


def connection_options() -> Options:
    """The options of a server that bound what connections without calls take."""
    return [
        ("grpc.max_connection_idle_ms", round(UNUSED_S * 1000)),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        ("grpc.max_concurrent_streams", 1000),
        ("grpc.http2.max_concurrent_streams", 1000),
    ]


def keepalive_options(ping_s: float = PING_S, answer_s: float = ANSWER_S) -> Options:
    """The options of a channel or a server.

    Args:
        ping_s: the time between two pings, 1 or more.
        answer_s: how long an answer may take.
    """
    return [
        ("grpc.keepalive_time_ms", round(ping_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(answer_s * 1000)),
        # A limit of its own, of a minute, for pings of every kind: the longer one counts.
        ("grpc.http2.ping_timeout_ms", round(answer_s * 1000)),
        # A stream of decisions is idle most of the time: pings go on nevertheless.
        ("grpc.http2.max_pings_without_data", 0),
        # The peer's pings are refused if they come oftener than this; by default that is five minutes.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(ping_s * 500)),
    ]
