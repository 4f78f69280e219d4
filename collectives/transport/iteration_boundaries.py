"""Reports where the job's iterations begin to the congestion controls of its connections.

From acknowledgements a control cannot tell the bursts of an iteration from iterations (FSDP, tensor parallel layers and
pipelines have many), and F would act on each burst. So the number of the iteration is left where the control looks
when the connection next sends: in TCP_SYNCNT, which any user may set on his own connections, and which the kernel does
not use once they are established. It needs no daemon and no privilege, and other controls do not notice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from mltcp.control.iteration import boundary_number
from mltcp.pacing.tcp_info import inode, set_syn_retries


class IterationBoundaries:
    """The connections of a job on this process, each with the number of the iteration that it is in."""

    def __init__(self) -> None:
        self._connections: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, descriptors: Iterable[int]) -> None:
        """Report iterations to these connections, too, while they are open."""
        with self._lock:
            for descriptor in descriptors:
                with suppress(OSError):
                    self._connections[descriptor] = inode(descriptor)

    def report(self, iterations: int) -> None:
        """So many iterations of the job have ended, and another one begins: a microsecond or two a connection."""
        number = boundary_number(iterations)
        with self._lock:
            closed = [each for each, own in self._connections.items() if not _report(each, own, number)]
            for descriptor in closed:
                del self._connections[descriptor]


def _report(descriptor: int, own_inode: int, number: int) -> bool:
    """Set the number on a connection; whether it still has its descriptor."""
    try:
        if inode(descriptor) != own_inode:
            return False
        set_syn_retries(descriptor, number)
    except OSError:
        return False
    return True
