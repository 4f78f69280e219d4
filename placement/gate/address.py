"""Where a gate listens: ``unix:/path`` or ``host:port``."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError
from placement.service.protocol.address import Address, answers

_BACKLOG = 1024


@dataclass(frozen=True)
class GateAddress(Address):
    """A Unix socket's path, or a host and port."""

    def listen(self, open_to_all: bool) -> socket.socket:
        """A listening socket; one at a path is for its owner only, unless it is open to all users of the host.

        What a gate that was killed left at the path is replaced.

        Raises:
            MltcpError: nothing can listen there, or something does.
        """
        try:
            return self._listen_at_path(self.path, open_to_all) if self.path else self._listen_at_port()
        except OSError as error:
            raise MltcpError(f"cannot listen at {self}: {error.strerror or error}") from None

    def _listen_at_path(self, path: Path, open_to_all: bool) -> socket.socket:
        if answers(path):
            raise MltcpError(f"cannot listen at {self}: another process does")
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
