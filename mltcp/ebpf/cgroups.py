"""The cgroups of jobs: new TCP sockets of the processes in one become flows of its job.

A job's cgroup is made below the one that its process is in. So the limits that are set there (by a batch system, a
container, a user's slice) stay in force, and what ends all processes there ends these too. Source: the kernel's
Documentation/admin-guide/cgroup-v2.rst, on delegation and on the top-down constraint.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.core.owner import Owner
from mltcp.ebpf.mounts import cgroup_root

CGROUP = "mltcp"
"""The parent of the cgroups of jobs whose processes are in the root cgroup."""

_PREFIX = "mltcp:"
_ATTEMPTS = 5


def cgroup_of(pid: int) -> Path:
    """The cgroup that a process is in.

    Raises:
        NotAvailableError: there is no cgroup v2, or no such process.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError as error:
        raise NotAvailableError(f"the cgroup of process {pid} is not known: {error.strerror}") from None
    for line in lines:
        if line.startswith("0::"):
            return path_of_cgroup(line[3:])
    raise NotAvailableError("this kernel has no cgroup v2")


def path_of_cgroup(name: str) -> Path:
    """The directory of a cgroup that /proc/PID/cgroup calls `name`.

    Raises:
        NotAvailableError: there is no cgroup v2.
    """
    return cgroup_root() / name.lstrip("/")


def name_of_cgroup(path: Path) -> str:
    """The name of a cgroup as in /proc/PID/cgroup, of its directory.

    Raises:
        UsageError: it is not a directory below the root of the cgroup v2 hierarchy.
        NotAvailableError: there is no cgroup v2.
    """
    root = cgroup_root()
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not resolved.is_dir() or root.resolve() not in resolved.parents:
        raise UsageError(f"{path}: expected the directory of a cgroup below {root}")
    return f"/{resolved.relative_to(root.resolve())}"


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
        OSError: this is not permitted, or the other one is gone.
    """
    if below == cgroup_root():
        below = below / CGROUP
        below.mkdir(exist_ok=True)
    path = below / name
    path.mkdir(exist_ok=True)
    return path


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
            path = make_cgroup(name, cgroup_of(os.getpid()))
        except (OSError, MltcpError):
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
    """How far below the root a cgroup is."""
    return len(path.relative_to(cgroup_root()).parts)


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
