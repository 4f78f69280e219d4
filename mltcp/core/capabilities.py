"""The capabilities of this process, by which it is decided what it may do. Source: capabilities(7)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from mltcp.core.errors import NotAvailableError

CAP_SETPCAP, CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 8, 12, 21, 38, 39

NAMES = {
    CAP_NET_ADMIN: "CAP_NET_ADMIN",
    CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
    CAP_PERFMON: "CAP_PERFMON",
    CAP_BPF: "CAP_BPF",
}

WORKING = (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)
"""For maps and struct_ops; for programs on cgroups; for programs that read kernel structures."""

KERNEL_MODE = (*WORKING, CAP_SYS_ADMIN)
"""The last one finds what is loaded among the maps of the kernel."""

_COVERED_BY_SYS_ADMIN = {CAP_PERFMON, CAP_BPF}


def effective() -> frozenset[int]:
    """The effective capabilities of this thread."""
    status = Path("/proc/thread-self/status").read_text(errors="replace")
    bits = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    return frozenset(number for number in range(64) if bits >> number & 1)


def missing(needed: Collection[int]) -> list[str]:
    """The names of the needed capabilities that this thread does not have."""
    present = effective()
    if CAP_SYS_ADMIN in present:
        present |= _COVERED_BY_SYS_ADMIN
    return [NAMES[number] for number in needed if number not in present]


def require(what: str, needed: Collection[int] = KERNEL_MODE) -> None:
    """Raise NotAvailableError, which names the capabilities, unless this thread has them."""
    lacking = missing(needed)
    if lacking:
        all_needed = ", ".join(NAMES[number] for number in needed)
        raise NotAvailableError(
            f"{what} needs root ({all_needed}), and lacks {', '.join(lacking)}: run it with sudo"
        )
