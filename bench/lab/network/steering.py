"""Receive packet steering (RPS), so that one processor handles all packets of a flow and they stay in order.

A veth delivers a packet on the processor that sends it, and the shaper sends on the processor that its timer runs on.
Without steering, packets of a flow overtake each other and TCP takes that for loss: spurious retransmissions that have
nothing to do with the jobs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

from mltcp.core.errors import MltcpError

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18


def steer_by_flow(processors: Collection[int] | None = None) -> None:
    """Turn RPS on for every interface of the calling thread's network namespace, in a mount namespace of its own.

    Args:
        processors: those that may handle packets; None: all.

    Raises:
        MltcpError: sysfs cannot be mounted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A sysfs shows the interfaces of the network namespace in which it was mounted.
    for done in (
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    ):
        if done != 0:
            raise MltcpError(
                f"sysfs cannot be mounted for the lab's interfaces: {os.strerror(ctypes.get_errno())}"
            )
    allowed = range(os.cpu_count() or 1) if processors is None else processors
    for queue in Path("/sys/class/net").glob("*/queues/rx-*/rps_cpus"):
        queue.write_text(f"{sum(1 << processor for processor in allowed):x}")
