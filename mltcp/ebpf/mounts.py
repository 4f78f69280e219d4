"""The mount points of the bpffs and the cgroup v2 hierarchy."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import NotAvailableError

BPFFS = Path("/sys/fs/bpf")
"""Where a bpffs is usually mounted."""

_ROOT_CGROUP = 1


@dataclass(frozen=True)
class Mount:
    """A mount of this mount namespace.

    Attributes:
        path: where it is mounted.
        root: the directory of the file system that is seen there. For cgroup v2 it is a name as in /proc/PID/cgroup,
            below the root of the reader's cgroup namespace, and begins with ``/..`` above that.
        device: of the file system.
        writable: whether it is not mounted read-only.
    """

    path: Path
    root: str
    device: int
    writable: bool

    @property
    def is_visible(self) -> bool:
        """Whether it is this mount that is seen at its path, not one over it."""
        try:
            return self.path.stat().st_dev == self.device
        except OSError:
            return False


def mounts(kind: str) -> list[Mount]:
    """The mounts of a file system type. Source: proc_pid_mountinfo(5)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        fields, _, described = line.partition(b" - ")
        if described.partition(b" ")[0] == kind.encode():
            _, _, device, root, path, options = fields.split(b" ")[:6]
            read_only = b"ro" in (*options.split(b","), *described.split(b" ")[-1].split(b","))
            number = os.makedev(*map(int, device.split(b":")))
            found.append(Mount(Path(_unescaped(path)), _unescaped(root), number, not read_only))
    return found


def _unescaped(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), field))


def cgroup_mount() -> Mount:
    """The mount of the cgroup v2 hierarchy, wherever it is: of several, one that can be written and shows all of it.

    Raises:
        NotAvailableError: it is not mounted.
    """
    # The last one at a path hides the others there.
    found = [
        mount for mount in {mount.path: mount for mount in mounts("cgroup2")}.values() if mount.is_visible
    ]
    if not found:
        raise NotAvailableError(
            "no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified"
        )
    return max(found, key=lambda mount: (mount.writable, shows_all_cgroups(mount)))


def shows_all_cgroups(mount: Mount) -> bool:
    """Whether a mount of cgroup v2 shows the hierarchy from its root on, which has a fixed inode."""
    return mount.path.stat().st_ino == _ROOT_CGROUP


def cgroup_root() -> Path:
    """The topmost cgroup that is seen here.

    Raises:
        NotAvailableError: the cgroup v2 hierarchy is not mounted.
    """
    return cgroup_mount().path
