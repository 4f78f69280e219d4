"""The cgroups of jobs: new TCP sockets of the processes in one become flows of its job.

A job's cgroup is made below the one that its process is in. So the limits that are set there (by a batch system, a
container, a user's slice) stay in force, and what ends all processes there ends these too. Source: the kernel's
Documentation/admin-guide/cgroup-v2.rst, on delegation and on the top-down constraint.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mltcp.core.cgroups import cgroup_mount, cgroup_of, cgroup_root, shows_all_cgroups
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.owner import Owner

CGROUP = "mltcp"
"""The parent of the cgroups of jobs whose processes are in the root cgroup."""

_PREFIX = "mltcp:"
_ATTEMPTS = 5
_LEVEL_UNSEEN = 1 << 16


def job_cgroup_name(uid: int, job: str, instance: str) -> str:
    """The name of the cgroup of a run of a user's job."""
    digest = hashlib.sha256(f"{uid}\0{job}\0{instance}".encode()).hexdigest()[:12]
    return f"{_PREFIX}{job}:{digest}"


def owned_cgroup_name(job: str) -> str:
    """The name of a cgroup that lives no longer than this process."""
    return f"{_PREFIX}{job}:{Owner.current()}:{time.monotonic_ns()}"


def make_cgroup(name: str, below: Path) -> Path:
    """Create a cgroup below another one, unless it is there.

    Raises:
        NotAvailableError: the kernel refuses, or the other one is gone.
    """
    try:
        for _ in range(_ATTEMPTS):
            # Whoever leaves the common parent last removes it, which may be now.
            with suppress(FileNotFoundError):
                return _made_cgroup(name, below)
        return _made_cgroup(name, below)
    except OSError as error:
        raise NotAvailableError(f"no cgroup can be made below {below}: {_reason(error, below)}") from None


def _made_cgroup(name: str, below: Path) -> Path:
    if below == cgroup_root():
        below = below / CGROUP
        below.mkdir(exist_ok=True)
    path = below / name
    path.mkdir(exist_ok=True)
    return path


def _reason(error: OSError, below: Path) -> str:
    if error.errno == errno.EAGAIN:
        return "the limit cgroup.max.descendants or cgroup.max.depth there or above is reached; raise it"
    if error.errno == errno.EROFS:
        return f"the hierarchy is mounted read-only; mount -o remount,rw,bind {cgroup_root()}"
    if isinstance(error, PermissionError):
        return f"{error.strerror}; run as root, or have {below} delegated to this user"
    return error.strerror or str(error)


def try_cgroup() -> Path:
    """Make a cgroup below that of this process and remove it; returns the cgroup of this process.

    Raises:
        NotAvailableError: none can be made there, or it takes no processes.
    """
    own = cgroup_of()
    path = make_cgroup(owned_cgroup_name("probe"), own)
    try:
        if (path / "cgroup.type").read_text().strip() == "domain invalid":
            raise NotAvailableError(
                f"the cgroup of this process, {own}, is threaded, and none below it takes processes"
            )
    finally:
        is_removed(path)
        remove_parent_cgroup()
    return own


def move(pid: int, path: Path) -> None:
    """Move a process to a cgroup.

    Raises:
        OSError: this is not permitted, or one of them is gone.
    """
    (path / "cgroup.procs").write_text(str(pid))


@contextmanager
def entered_cgroup(name: str) -> Iterator[None]:
    """Move this process into a new cgroup below its own for the time of the context, if it may make one.

    It may as root, and in a cgroup that is delegated to its user. What it leaves there goes on in the one above.
    """
    path = _enter(name)
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                remove_cgroup(path)


def _enter(name: str) -> Path | None:
    for _ in range(_ATTEMPTS):
        try:
            path = make_cgroup(name, cgroup_of())
        except MltcpError:
            return None
        try:
            move(os.getpid(), path)
        except FileNotFoundError:
            continue  # somebody took it for one that was left, because it was empty
        except OSError:
            is_removed(path)
            return None
        return path
    return None


def level_of(path: Path) -> int:
    """How far below the root of the hierarchy a cgroup is; where the root is not seen, farther than any that is."""
    mount = cgroup_mount()
    base = 0 if shows_all_cgroups(mount) else _LEVEL_UNSEEN
    return base + len(path.relative_to(mount.path).parts)


def try_to_remove_cgroup(path: Path) -> bool:
    """Remove a job's cgroup; its processes go on in the one above. False if that takes more time.

    Raises:
        PermissionError: it belongs to another user, who has to do it.
    """
    try:
        for pid in (path / "cgroup.procs").read_text().split():
            _move_up(int(pid), path)
        path.rmdir()
    except (FileNotFoundError, ProcessLookupError):
        return not path.exists()
    except PermissionError:
        raise
    except OSError:
        return False
    return True


def remove_cgroup(path: Path) -> None:
    """Remove a job's cgroup, waiting for processes that are leaving it; those that go on do so in the one above.

    Raises:
        OSError: it cannot be removed.
    """
    deadline_s = time.monotonic() + 2
    while not try_to_remove_cgroup(path):
        if time.monotonic() > deadline_s:
            path.rmdir()  # raises the reason
        time.sleep(0.01)


def _move_up(pid: int, path: Path) -> None:
    root = cgroup_root()
    above = root if path.parent == root / CGROUP else path.parent
    with suppress(ProcessLookupError):  # the process has ended
        move(pid, above)


def is_removed(path: Path) -> bool:
    """Remove a job's cgroup if it is empty; whether it is gone."""
    with suppress(OSError):
        path.rmdir()
    return not path.exists()


def remove_left_cgroups() -> list[Path]:
    """Remove the cgroups whose owner has died, and those of jobs that are empty; returns the others of jobs."""
    left = []
    for path in job_cgroups():
        owner = owner_of(path)
        if owner is None:
            if not is_removed(path):
                left.append(path)
        elif not owner.is_alive():
            with suppress(OSError):
                remove_cgroup(path)
    return left


def owner_of(path: Path) -> Owner | None:
    """The process that a cgroup lives no longer than, by its name; None: it is that of a job."""
    named = path.name.split(":")[2:-1]
    return Owner.parse(named[0]) if named else None


def job_cgroups() -> Iterator[Path]:
    """The cgroups of all jobs, the inner ones first."""
    with suppress(MltcpError):
        for directory, names, _ in os.walk(cgroup_root(), topdown=False):
            yield from (Path(directory) / name for name in names if name.startswith(_PREFIX))


def hold_parent_cgroup() -> Path:
    """Create the parent of the jobs' cgroups, which takes more privileges than creating those.

    Returns an empty cgroup in it, which keeps others from removing the parent, and is to be removed at the end.
    """
    return make_cgroup(owned_cgroup_name("daemon"), cgroup_root())


def remove_parent_cgroup() -> None:
    """Remove the parent cgroup, if no job has a cgroup in it."""
    with suppress(OSError):
        (cgroup_root() / CGROUP).rmdir()
