"""Sets the DSCP of a job's connections (MLTCP_DSCP), by which switches choose a queue.

The traffic of RDMA has a class of its own (``NCCL_IB_TC``), which NCCL reads itself. Where the host's eBPF programs
choose the class of each burst (docs/ebpf.md, "Traffic classes"), theirs replaces this one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from collectives.core.notices import go_on_without
from collectives.core.settings import Settings
from collectives.transport.process_sockets import Connections
from mltcp.pacing.tcp_info import set_dscp


def apply(connections: Connections, settings: Settings, rank: int) -> None:
    """Set the job's DSCP on the connections of a group, on each as soon as it is found; nothing if it has none.

    If that fails, the job runs without it, and one rank per host logs it once; `rank` is this process's in the job.

    Raises:
        NotAvailableError: it failed, and MLTCP_STRICT is set.
    """
    dscp = settings.dscp
    if dscp is not None:
        connections.when_found(lambda descriptors: _set_all(descriptors, dscp, settings.strict, rank))


def _set_all(descriptors: Iterable[int], dscp: int, strict: bool, rank: int) -> None:
    try:
        for each in descriptors:
            _set(each, dscp)
    except OSError as error:
        failure = f"cannot set DSCP {dscp}: {error.strerror}"
    else:
        return
    go_on_without("dscp", failure, strict, rank)


def _set(descriptor: int, dscp: int) -> None:
    try:
        set_dscp(descriptor, dscp)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTSOCK):  # it has been closed meanwhile
            raise
