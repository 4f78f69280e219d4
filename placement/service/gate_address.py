"""Where a gate listens: ``unix:/path`` or ``host:port``."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from placement.errors import PlacementError, UsageError

_BACKLOG = 1024


@dataclass(frozen=True)
class GateAddress:
    """A Unix socket's path, or a host and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> GateAddress:
        """Read ``unix:/path``, ``host:port`` or ``[host]:port``.

        Raises:
            UsageError: it is none of these.
        """
        if text.startswith("unix:") and len(text) > len("unix:"):
            return cls(path=Path(text.removeprefix("unix:")))
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"address {text!r}: unix:/path or host:port is allowed")
        return cls(host=host.strip("[]"), port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach it."""
        with suppress(ValueError):
            return self.path is not None or ip_address(self.host).is_loopback
        return self.host == "localhost"

    def listen(self, open_to_all: bool) -> socket.socket:
        """A listening socket; one at a path is for its owner only, unless it is open to all users of the host.

        What a gate that was killed left at the path is replaced.

        Raises:
            PlacementError: nothing can listen there, or something does.
        """
        try:
            return self._listen_at_path(self.path, open_to_all) if self.path else self._listen_at_port()
        except OSError as error:
            raise PlacementError(f"cannot listen at {self}: {error.strerror or error}") from None

    def _listen_at_path(self, path: Path, open_to_all: bool) -> socket.socket:
        if _answers(path):
            raise PlacementError(f"cannot listen at {self}: another process does")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            former = os.umask(0o111 if open_to_all else 0o177)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(former)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def _listen_at_port(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener


def _answers(path: Path) -> bool:
    """Whether somebody listens at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
