"""A user's limits in the daemon and on the network. Root has none."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.peer import Peer
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, allowed


@dataclass(frozen=True)
class Limits:
    """The limits of a user.

    Attributes:
        factor: the largest F that the user may choose. With the default no job takes more than twice the share of one
            under the paper's F, whose largest value it is.
        controls: the congestion controls that the user may choose; None: those that the kernel lets every user choose
            (tcp_allowed_congestion_control), and MLTCP's.
        jobs: at a time.
        attached: processes that are put into their job's cgroup, at a time.
        connections: to the daemon's socket; None: half of all that it can have.
        seconds: of the daemon's processor time, in each second. Later requests wait.
        workers: processes that take descriptors, of all users; each has one at a time.
    """

    factor: float = 2.0
    controls: tuple[str, ...] | None = None
    jobs: int = 256
    attached: int = 64
    connections: int | None = None
    seconds: float = 0.2
    workers: int = 16

    def check_function(self, peer: Peer, function: Aggressiveness, default: Aggressiveness) -> None:
        """Check an F that a user has chosen; the daemon's default is everybody's.

        Raises:
            UsageError: it is too large.
        """
        if peer.is_root or function in (default, Aggressiveness()):
            return
        # A job whose bytes_ratio is 1 for ever has this all the time: no mean bounds what it takes.
        largest = 1.0 if function.shape is Shape.ONE else function.slope + function.intercept
        if largest > self.factor:
            raise UsageError(
                f"slope + intercept: expected at most {self.factor:g}, the limit for users (limits.factor), "
                f"got {largest:g}"
            )

    def check_control(self, peer: Peer, control: str) -> None:
        """Check a congestion control that a user has chosen by name.

        Raises:
            DeniedError: the user may not choose it.
        """
        if peer.is_root:
            return
        choice = self.controls if self.controls is not None else (*allowed(), *MLTCP_CONTROLS)
        if control not in choice:
            raise DeniedError(
                f"control: expected one of {', '.join(dict.fromkeys(choice))}, which users may choose "
                f"(limits.controls), got {control!r}"
            )
