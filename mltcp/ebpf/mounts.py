"""The mount points of the bpffs and the cgroup v2 hierarchy."""

from __future__ import annotations

from pathlib import Path

from mltcp.core.errors import NotAvailableError

BPFFS = Path("/sys/fs/bpf")
"""Where a bpffs is usually mounted."""


def mounted(kind: str) -> list[Path]:
    """The mount points of a file system type, as /proc/self/mounts lists them."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1].replace("\\040", " ")) for fields in lines if fields[2] == kind]


def cgroup_root() -> Path:
    """The root of the cgroup v2 hierarchy, wherever it is mounted.

    Raises:
        NotAvailableError: it is not mounted.
    """
    found = mounted("cgroup2")
    if not found:
        raise NotAvailableError(
            "no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified"
        )
    return found[0]
