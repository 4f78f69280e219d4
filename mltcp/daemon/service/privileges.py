"""Drops the capabilities that the daemon does not need once it has started.

It remains user root, so that it owns its files, but keeps three capabilities: CAP_NET_ADMIN (qdiscs,
priorities, marks, congestion controls), CAP_BPF (maps), CAP_PERFMON (programs). Source: capabilities(7).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from mltcp.core import capabilities
from mltcp.core.errors import MltcpError

_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
KEPT = capabilities.WORKING


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def drop() -> None:
    """Drop all but the needed capabilities for good. Call it before threads are started, since it is per thread.

    Raises:
        MltcpError: the kernel refuses.
    """
    # What may not reduce the bounding set (no CAP_SETPCAP) gains nothing from it, since new privileges are ruled out.
    reducible = capabilities.CAP_SETPCAP in capabilities.effective()
    for capability in range(_last_capability() + 1):
        if capability not in KEPT and reducible:
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "the bounding set cannot be reduced")
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    for capability in KEPT:
        word, bit = divmod(capability, 32)
        data[word].effective |= 1 << bit
        data[word].permitted |= 1 << bit
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capabilities cannot be given up")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "new privileges cannot be ruled out")


def _last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())


def _check(status: int, what: str) -> None:
    if status != 0:
        raise MltcpError(f"{what}: {os.strerror(ctypes.get_errno())}")
