"""Receive packet steering: all packets of a flow take the same processor through an interface, and so stay in order.

A virtual cable hands a packet on to whichever processor sends it, and the shaper sends from the one that its timer
runs on. Without steering, packets of a flow overtake each other, TCP takes that for loss, and jobs are measured that
stumble over the lab instead of over each other.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from mltcp.core.errors import MltcpError

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18


def steer_by_flow() -> None:
    """Steer on every interface of the calling thread's network namespace; the thread's mounts become its own.

    Raises:
        MltcpError: sysfs cannot be mounted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # sysfs shows the interfaces of the namespace it was mounted in
    for done in (
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    ):
        if done != 0:
            raise MltcpError(f"the lab cannot see its interfaces in sysfs: {os.strerror(ctypes.get_errno())}")
    for queue in Path("/sys/class/net").glob("*/queues/rx-*/rps_cpus"):
        queue.write_text(f"{(1 << (os.cpu_count() or 1)) - 1:x}")
