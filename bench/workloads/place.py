"""The place of a rank: the network namespace, interface and cgroup that its process enters before anything else."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class RankPlace:
    """The place of one rank.

    Attributes:
        namespace: a named network namespace; None: the caller's.
        interface: the network interface for Gloo.
        address: the local address that the rank's connections must have.
        cgroup: a cgroup v2 directory.
        daemon: the socket of the daemon; None: the rank uses no daemon.
        pace: the value of MLTCP_PACE.
        environment: further environment variables.
        control: the congestion control that the backend sets on each socket; None: that of the cgroup is in use.
        meeting: the address and port of the store at which the job's ranks meet, which rank 0 serves; None: they meet
            at a file.

    Raises:
        UsageError: the interface has a name of one letter, which Gloo ignores.
    """

    namespace: str | None
    interface: str
    address: str
    cgroup: Path | None = None
    daemon: Path | None = None
    pace: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    control: str | None = None
    meeting: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if len(self.interface) < 2:
            raise UsageError(
                f"interface: expected a name of at least two letters for Gloo, got {self.interface!r}"
            )

    @property
    def store_port(self) -> int | None:
        """The port of the store at which the ranks meet; None: they meet at a file."""
        return None if self.meeting is None else self.meeting[1]

    def enter(self) -> None:
        """Move this process there, while it has a single thread. Raises MltcpError if it cannot."""
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
    # os.setns exists from Python 3.12 on.
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
