"""Pings of gRPC by which a peer is missed that went away without a word, as a host does that lost its power.

TCP alone notices that after two hours if nothing is sent, and after a quarter of an hour if something is.
"""

from __future__ import annotations

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
