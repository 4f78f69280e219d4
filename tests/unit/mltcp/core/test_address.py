"""Ports for processes that must be told which to take."""

import socket
from pathlib import Path

from mltcp.core.address import free_port


def test_a_free_port_is_none_that_the_kernel_gives_to_connections_and_is_given_once():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port() for _ in range(50)]
    assert len({*ports}) == 50
    assert all(1024 <= port < lowest for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
