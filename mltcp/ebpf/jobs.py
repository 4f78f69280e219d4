"""Jobs in the kernel: their map entries, and the cgroups whose new TCP sockets become their flows."""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mltcp.core.cgroups import cgroup_of, cgroup_root
from mltcp.core.errors import NotAvailableError, UsageError, shown
from mltcp.core.owner import Owner
from mltcp.core.policy_names import control_name
from mltcp.ebpf import build
from mltcp.ebpf.cgroups import (
    level_of,
    make_cgroup,
    owned_cgroup_name,
    remove_cgroup,
    remove_left_cgroups,
    remove_parent_cgroup,
)
from mltcp.ebpf.congestion_controls import CONTROLS, SOURCES, Controls, NothingLoadedError, available
from mltcp.ebpf.layout import KernelJob
from mltcp.ebpf.libbpf import ALLOW_MULTI, ALLOW_OVERRIDE, BpfError, BpfObject, cgroup_programs, program_name

_ATTACHMENT = struct.Struct("=IIII16s")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,30}")


@dataclass(frozen=True)
class Attached:
    """A job with a cgroup: a process joins it by writing its pid to ``cgroup / "cgroup.procs"``."""

    number: int
    name: str
    cgroup: Path


@dataclass(frozen=True)
class SocketSettings:
    """The settings of new sockets in a cgroup; 0 or empty: none.

    Attributes:
        number: of the job's map entry.
        control: its congestion control.
        htb_class, mark: what selects the class of a paced job.
    """

    number: int
    control: str
    htb_class: int = 0
    mark: int = 0


def check_name(name: str) -> str:
    """Return the name of a job. Raises UsageError if it is malformed."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"job name: expected 1 to 31 letters, digits or ._@-, the first a letter or digit, got {shown(name)}"
        )
    return name


@contextmanager
def attached(job: KernelJob, control: str, controls: Controls | None = None) -> Iterator[Attached]:
    """A cgroup whose new TCP sockets run under ``control`` as flows of ``job``, until the context ends.

    This process holds the program that does so: if it dies, the kernel detaches the program, and open sockets keep
    their control. With a control that is not ours (``cubic``) there is a cgroup but no map entry.

    Raises:
        UsageError: the control is not available.
        NotAvailableError: no cgroup can be made below that of this process.
    """
    controls = controls or Controls()
    if control not in available():
        raise UsageError(f"unknown congestion control {control!r}; choose from {', '.join(available())}")
    remove_stale(controls)
    ours = controls.takes_jobs(control)
    number = enter_job(job, controls) if ours else 0
    path = make_cgroup(owned_cgroup_name(job.name), cgroup_of())
    try:
        with attached_program(SocketSettings(number, control), path, controls):
            yield Attached(number, job.name, path)
    finally:
        with suppress(OSError):  # the program may have made cgroups below; the next run removes it
            remove_cgroup(path)
        remove_parent_cgroup()
        if ours:
            _leave_job(number, controls)


@contextmanager
def entered(job: KernelJob, controls: Controls) -> Iterator[int]:
    """A map entry for a job whose connections are assigned to it one by one; yields its number.

    Raises:
        TooManyJobsError: the map is full.
    """
    number = enter_job(job, controls)
    try:
        yield number
    finally:
        _leave_job(number, controls)


def enter_job(job: KernelJob, controls: Controls) -> int:
    """Add a map entry for a job, owned by this process; returns its number.

    Raises:
        TooManyJobsError: the map is full.
    """
    with controls.job_entries() as entries:
        return entries.add(replace(job, owner=Owner.current()))


def _leave_job(number: int, controls: Controls) -> None:
    """Remove the entry once the job's flows have closed; a flow that outlives it continues on its own.

    It is gone already if the controls were unloaded or replaced meanwhile.
    """
    deadline = time.monotonic() + 2
    with suppress(NothingLoadedError), controls.job_entries() as entries:
        while entries.flows(number) and time.monotonic() < deadline:
            time.sleep(0.01)
        entries.remove(number)


@contextmanager
def attached_program(settings: SocketSettings, cgroup: Path, controls: Controls) -> Iterator[None]:
    """While the context lasts, every TCP socket that is opened in the cgroup gets these settings.

    Raises:
        NotAvailableError: another program is attached there or above that allows no other one.
        BpfError: the kernel refuses for another reason.
    """
    with BpfObject.open(build.compiled(SOURCES / "attach.bpf.c")) as program:
        classes = settings.htb_class, settings.mark
        values = _ATTACHMENT.pack(settings.number, *classes, level_of(cgroup), settings.control.encode())
        program.set_initial(".rodata", values)
        if controls.loaded():
            with suppress(NothingLoadedError), controls.shared_map("mltcp_tags") as tags:
                program.reuse("mltcp_tags", tags)
        program.load()
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link = program.attach_cgroup("mltcp_attach", directory)
        except BpfError as error:
            if error.errno == errno.EPERM and (reason := _exclusive(cgroup)):
                raise NotAvailableError(reason) from None
            raise
        finally:
            os.close(directory)
    # The link holds the program: one descriptor in place of one for each of its maps.
    with link:
        yield


def _exclusive(cgroup: Path) -> str:
    """Which program keeps others from being attached to a cgroup; empty: none that is seen.

    The first cgroup with programs, from this one up, decides (kernel/bpf/cgroup.c, hierarchy_allows_attach).
    """
    for place in [cgroup, *cgroup.parents][: len(cgroup.relative_to(cgroup_root()).parts) + 1]:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            programs = cgroup_programs(directory)
        except BpfError:
            return ""
        finally:
            os.close(directory)
        allowed = ALLOW_MULTI if place == cgroup else ALLOW_MULTI | ALLOW_OVERRIDE
        if programs.ids and not programs.flags & allowed:
            names = ", ".join(f"{number} {program_name(number)}".strip() for number in programs.ids)
            what = f"another sock_ops program ({names}) is attached to cgroup {place}"
            return f"{what} and allows no other one there or below; detach it, or attach it with BPF_F_ALLOW_MULTI"
        if programs.ids:
            return ""
    return ""


def remove_stale(controls: Controls) -> None:
    """Remove the cgroups and the map entries without flows whose owner has died."""
    remove_left_cgroups()
    if not controls.loaded():
        return
    # Another program may unload them at any time.
    with suppress(NothingLoadedError), controls.job_entries() as entries:
        for number, job in entries:
            if not job.flows and not job.is_owned:
                entries.remove(number)


def control_for(policy: str) -> str:
    """The congestion control of a policy: that of its name, but ``bpf_dctcp`` for ``dctcp`` if the kernel lacks it.

    Raises:
        UsageError: neither this kernel nor this project has it.
    """
    policy = control_name(policy)
    if policy == "dctcp" and "dctcp" not in available():
        return "bpf_dctcp"
    if policy in available() or policy in CONTROLS:
        return policy
    raise UsageError(
        f"unknown congestion control {policy!r}; choose from {', '.join([*available(), 'dctcp', *CONTROLS])}"
    )
