"""Addresses at which the services of this project listen: ``unix:/path``, ``host:port`` or ``[host]:port``."""

from __future__ import annotations

import errno
import os
import random
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from mltcp.core.errors import MltcpError, UsageError

_LONGEST_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) less the terminating zero


@dataclass(frozen=True)
class Address:
    """The path of a Unix socket, or a host and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, field: str = "--address") -> Self:
        """Parse ``unix:/path``, ``host:port`` or ``[host]:port``.

        Raises:
            UsageError: the text is none of these; the message begins with `field`.
        """
        path = text.removeprefix("unix:")
        if path != text and path.startswith("/"):
            length = len(os.fsencode(path))
            if length > _LONGEST_PATH_BYTES:
                raise UsageError(
                    f"{field}: expected a path of at most {_LONGEST_PATH_BYTES} bytes, got {length}: {text!r}"
                )
            return cls(path=Path(path))
        host, _, port = text.rpartition(":")
        if path != text or not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
            raise UsageError(f"{field}: expected unix:/path or host:port, got {text!r}")
        return cls(host=host.strip("[]"), port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can connect."""
        with suppress(ValueError):
            return self.path is not None or ip_address(self.host).is_loopback
        return self.host == "localhost"

    def check_free(self) -> None:
        """Raise `MltcpError` if a process listens at this path; binding would silently take the path away from it."""
        if self.path is not None and is_listening(self.path):
            raise MltcpError(f"cannot listen at {self}: another process does")


def is_listening(path: Path) -> bool:
    """Whether a process listens at the path of a Unix socket, of any kind; also one that is stopped."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            # The listener's queue is full, or it takes packets and not streams. Nobody: ECONNREFUSED.
            return error.errno in (errno.EAGAIN, errno.EPROTOTYPE)
        return True


_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS_TRIED = 100
_given_ports: set[int] = set()


def free_port() -> int:
    """A TCP port of this host's loopback that nobody uses now, for a process that must be told which to take.

    Where there is one, it is below those that the kernel gives to connections: such a connection could take it before
    that process does, or while it is restarted. No call gives a port that an earlier one in this process gave.
    """
    lowest = int(_PORT_RANGE.read_text().split()[0])
    below = [port for port in range(max(1024, lowest // 2), lowest) if port not in _given_ports]
    for port in random.SystemRandom().sample(below, min(_PORTS_TRIED, len(below))):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given_ports.add(port)
            return port
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
