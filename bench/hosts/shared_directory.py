"""A directory of the launcher that ranks on hosts share: sockets in it are forwarded there, files come back."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.hosts.hosts_file import RemoteHost

Variables = tuple[tuple[str, str], ...]

AGENTS_DIRECTORY = "\0directory"
"""Stands for the directory of a host's agent in the value of a variable, where no other value can have it."""

WHERE_SSHD_LISTENS = Path("/tmp")
"""The directory of a host in which it has the sockets that are forwarded."""

_UNIX = "unix:"


@dataclass(frozen=True)
class SharedDirectory:
    """What is shared of a directory.

    sshd listens for a forwarded socket at a path that nobody can guess before; the agent takes the socket from there
    into its own directory, where only its user can put anything.

    Attributes:
        here: the directory.
        sockets: the names of the sockets.
    """

    here: Path
    sockets: tuple[str, ...] = ()
    _token: str = field(default_factory=lambda: secrets.token_hex(8))

    def forwarded(self, host: RemoteHost) -> dict[Path, Path]:
        """The sockets: the path at which sshd listens on a host, and the one here."""
        start = f"mltcp-{self._token}-{host.name}"
        return {WHERE_SSHD_LISTENS / f"{start}.{name}": self.here / name for name in self.sockets}

    def variables(self, variables: Iterable[tuple[str, str]]) -> Variables:
        """Environment variables for an agent: paths here become those in its directory."""
        return tuple((name, self._value(value)) for name, value in variables)

    def files(self, variables: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """The names of the files in the directory that variables are the path of."""
        return tuple(Path(value).name for _, value in variables if Path(value).parent == self.here)

    def _value(self, value: str) -> str:
        path = Path(value.removeprefix(_UNIX))
        if path.parent != self.here:
            return value
        return f"{_UNIX if value.startswith(_UNIX) else ''}{AGENTS_DIRECTORY}/{path.name}"


def on_host(variables: Iterable[tuple[str, str]], directory: Path) -> Variables:
    """The variables of a rank of an agent that has this directory."""
    return tuple((name, value.replace(AGENTS_DIRECTORY, str(directory))) for name, value in variables)


def socket_name(path: Path) -> str:
    """The name of the socket for which sshd listens at this path."""
    return path.suffix.removeprefix(".")
