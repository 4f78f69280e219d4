"""The mounts of bpffs and cgroup v2, and the cgroups of processes. Source: the kernel's cgroup-v2.rst."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import NotAvailableError, UsageError

BPFFS = Path("/sys/fs/bpf")
"""Where a bpffs is usually mounted."""

_ROOT_CGROUP = 1
_MOUNT_IT = "mount the hierarchy in this cgroup namespace, or run outside of it"


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


def cgroup_of(pid: int | None = None) -> Path:
    """The cgroup that a process is in; None: this process, whose cgroup is checked to be the one that it is in.

    Raises:
        NotAvailableError: there is no cgroup v2, no such process, or its cgroup is not seen here.
    """
    of_whom = f"the cgroup of {'this process' if pid is None else f'process {pid}'}"
    path = _seen_at(_name_of(pid, of_whom))
    if pid is None and not _has_process(path, os.getpid()):
        raise NotAvailableError(f"{of_whom} is not seen at {path}: {_MOUNT_IT}")
    return path


def _name_of(pid: int | None, of_whom: str) -> str:
    """The name of the cgroup of a process, in this process's cgroup namespace."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/cgroup").read_bytes().split(b"\n")
    except OSError as error:
        raise NotAvailableError(f"{of_whom} is not known: {error.strerror}") from None
    for line in lines:
        if line.startswith(b"0::"):
            return os.fsdecode(line[3:])
    raise NotAvailableError("this kernel has no cgroup v2")


def _has_process(path: Path, pid: int, unknown: bool = True) -> bool:
    try:
        return str(pid) in (path / "cgroup.procs").read_text().split()
    except OSError as error:
        return unknown and error.errno == errno.EOPNOTSUPP  # a threaded cgroup lists no processes


def _seen_at(name: str) -> Path:
    """The directory of a cgroup that /proc/PID/cgroup calls `name` for this process.

    Raises:
        NotAvailableError: there is no cgroup v2, or the mount does not show this cgroup.
    """
    mount = cgroup_mount()
    wanted, root, up = _parts(name), _parts(mount.root), 0
    while root and wanted and root[0] == wanted[0]:
        up += wanted.pop(0) == root.pop(0) == ".."
    if ".." not in wanted and not root:
        return mount.path.joinpath(*wanted)
    if ".." in wanted or set(root) != {".."}:
        shown = f"which shows {mount.root} and below"
        raise NotAvailableError(f"cgroup {name} is not seen at {mount.path}, {shown}: {_MOUNT_IT}")
    # The mount begins above the root of this cgroup namespace, by names that /proc does not tell.
    return [(start := _namespace_root(mount.path)), *start.parents][up].joinpath(*wanted)


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part]


def _namespace_root(top: Path) -> Path:
    """The root of the cgroup namespace: this process is in it or below it, and is looked for from `top` on."""
    below = _parts(_name_of(None, "the cgroup of this process"))
    for directory, _, _ in os.walk(top):
        path = Path(directory)
        if ".." not in below and _has_process(path, os.getpid(), unknown=False):
            return [path, *path.parents][len(below)]
    raise NotAvailableError(f"the root of the cgroup namespace is not seen at {top}: {_MOUNT_IT}")


def path_of_cgroup(name: str) -> Path:
    """The directory of a cgroup, of its name as from `name_of_cgroup`.

    Raises:
        NotAvailableError: there is no cgroup v2, or the mount does not show this cgroup.
    """
    mount = cgroup_mount()
    return mount.path / name.lstrip("/") if shows_all_cgroups(mount) else _seen_at(name)


def name_of_cgroup(path: Path) -> str:
    """The name of a cgroup below the root of the hierarchy, as in /proc/PID/cgroup on the host, of its directory.

    Raises:
        UsageError: it is not a directory below the root of the cgroup v2 hierarchy.
        NotAvailableError: there is no cgroup v2.
    """
    mount = cgroup_mount()
    root = mount.path.resolve()
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not resolved.is_dir() or root not in resolved.parents:
        raise UsageError(f"{path}: expected the directory of a cgroup below {mount.path}")
    # In a cgroup namespace that shows no more than its own cgroups, this is the name below that namespace's root.
    above = [] if shows_all_cgroups(mount) else _parts(mount.root)
    if ".." in above:
        raise NotAvailableError(f"the name of cgroup {path} is not seen at {mount.path}: {_MOUNT_IT}")
    return "/" + "/".join([*above, *resolved.relative_to(root).parts])
