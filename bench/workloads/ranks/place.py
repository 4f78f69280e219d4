"""Where a rank runs: the network namespace, interface and cgroup that its process moves into first of all."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class RankPlace:
    """A named network namespace (None: the caller's), interface and address in it, a cgroup v2 directory, the socket
    of the daemon there (None: none is asked), what MLTCP_PACE is set to, and further variables of its environment.

    The address is what the rank's connections must turn out to be bound to. Raises UsageError for an
    interface with a name of one letter, which Gloo ignores.
    """

    namespace: str | None
    interface: str
    address: str
    cgroup: Path | None = None
    daemon: Path | None = None
    pace: str | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.interface) < 2:
            raise UsageError(f"interface {self.interface!r}: Gloo needs a name of at least two letters")

    def enter(self) -> None:
        """Move this process there, while it has a single thread. Raises MltcpError naming what failed."""
        if self.cgroup is not None:
            _join_cgroup(self.cgroup)
        if self.namespace is not None:
            _enter_network(self.namespace)


def _join_cgroup(directory: Path) -> None:
    try:
        (directory / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise MltcpError(f"cannot join cgroup {directory}: {error.strerror}") from error


def _enter_network(name: str) -> None:
    # os.setns came with Python 3.12 only.
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MltcpError(f"cannot enter network namespace {name}: {error.strerror}") from error
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise MltcpError(f"cannot enter network namespace {name}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
