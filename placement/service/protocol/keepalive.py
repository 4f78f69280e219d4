"""Pings of gRPC by which a peer is missed that went away without a word, as a host does that lost its power.

TCP alone notices that after two hours if nothing is sent, and after a quarter of an hour if something is.
"""

from __future__ import annotations

Options = list[tuple[str, int]]

PING_S = 10.0
"""The time between two pings of a connection."""

ANSWER_S = 5.0
"""The time after which a connection whose ping is not answered is given up."""


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
