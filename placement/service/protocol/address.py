"""Where the service listens: ``unix:/path`` or ``host:port``."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from mltcp.core.errors import MltcpError, UsageError

VARIABLE = "MLTCP_PLACEMENT"
_LONGEST_PATH = 107


@dataclass(frozen=True)
class Address:
    """A Unix socket's path, or a host and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, what: str = "--address") -> Self:
        """Read ``unix:/path``, ``host:port`` or ``[host]:port``.

        Raises:
            UsageError: it is none of these.
        """
        path = text.removeprefix("unix:")
        if path != text and path.startswith("/"):
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise UsageError(f"{what} {text!r}: a path of up to {_LONGEST_PATH} bytes is allowed")
            return cls(path=Path(path))
        host, _, port = text.rpartition(":")
        if path != text or not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"{what} {text!r}: unix:/path or host:port is allowed")
        return cls(host=host.strip("[]"), port=int(port))

    @classmethod
    def default(cls) -> Self:
        """That of ``MLTCP_PLACEMENT``, or a Unix socket in the user's runtime directory.

        Raises:
            UsageError: the variable holds no address.
        """
        given = os.environ.get(VARIABLE, "")
        if given:
            return cls.parse(given, VARIABLE)
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return cls(path=Path(runtime, "mltcp", "placement.sock") if runtime else _private("placement.sock"))

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach it."""
        with suppress(ValueError):
            return self.path is not None or ip_address(self.host).is_loopback
        return self.host == "localhost"

    def check_free(self) -> None:
        """Raises `MltcpError` if somebody listens at this path: gRPC would take it away from them."""
        if self.path is not None and answers(self.path):
            raise MltcpError(f"cannot listen at {self}: another process does")


def answers(path: Path) -> bool:
    """Whether somebody listens at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True


def _private(name: str) -> Path:
    return Path("/run/mltcp" if os.getuid() == 0 else f"/tmp/mltcp-{os.getuid()}", name)
