"""Load, register and unload the congestion controls.

A control is registered kernel-wide, for every network namespace, under its name. Nothing is pinned:
``registrations.py`` has the reasons, and finds what is loaded. All controls of one build share maps (jobs, flows,
records): the first one that is loaded brings them, the next ones find them through it, and they are gone with the last
control and its last socket.

Another build of a control takes the name from the one that has it, with maps of its own: nobody has to end a job for an
upgrade. Sockets of the former build keep its programs and maps until they close.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from mltcp.core import capabilities
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.ebpf import build
from mltcp.ebpf.flow_watch import FlowWatch
from mltcp.ebpf.job_entries import JobEntries
from mltcp.ebpf.kernel_types import RUNNING, has_tx_start_hook, missing
from mltcp.ebpf.layout import Flow, KernelJob
from mltcp.ebpf.libbpf import BpfError, BpfMap, BpfObject
from mltcp.ebpf.registrations import (
    FLOWS,
    KernelControl,
    foreign_id,
    holds,
    kernel_controls,
    open_map,
    remove_former_pins,
    unregister,
)

SOURCES = Path(__file__).resolve().parent
CONTROLS = {"mltcp_reno": "reno", "mltcp_cubic": "cubic", "mltcp_dctcp": "dctcp", "bpf_dctcp": "dctcp"}
"""Every control and its source; ``bpf_dctcp`` is plain DCTCP, for kernels that do not have it built in."""

MLTCP_CONTROLS = tuple(name for name in CONTROLS if name.startswith("mltcp_"))

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
SHARED_MAPS = ("mltcp_terms", "mltcp_jobs", "mltcp_tags", "mltcp_flows", "mltcp_alone", "mltcp_records")
_FALLBACK = ".rodata.fallback"  # of dctcp.bpf.c
_TRIES = 10


@dataclass(frozen=True)
class RegisteredControl:
    """The state of a control in the kernel.

    Attributes:
        name: of the control.
        state: ``loaded``, ``older`` (another build of this project's, which the next load replaces), ``foreign``
            (another program's), or ``absent``.
        map_id: of its struct_ops map, if it has one.
        users: the sockets that have it; 0 if it is another program's.
        build: of its object, if it is this project's.
    """

    name: str
    state: str
    map_id: int | None = None
    users: int = 0
    build: str = ""


class NothingLoadedError(MltcpError):
    """No control of this build is in the kernel."""


def usual_controls(control: str) -> tuple[str, ...]:
    """The controls that connections have which were given this one: without ECN, DCTCP's are Reno's (dctcp.bpf.c)."""
    if control == "mltcp_dctcp":
        return control, "mltcp_reno", "reno"
    return (control, "reno") if control == "bpf_dctcp" else (control,)


def available() -> list[str]:
    """The congestion controls that the kernel offers now."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def allowed() -> list[str]:
    """The congestion controls that every user may choose for their sockets."""
    return ALLOWED.read_text().split()


def control_object(source: str, kernel: Path = RUNNING) -> Path:
    """The compiled object of a source of CONTROLS for a kernel, by the file with its types.

    Raises:
        NotAvailableError: the kernel has no types, or the object has to be compiled and clang is missing.
    """
    try:
        hook = has_tx_start_hook(kernel)
    except BpfError as error:
        raise NotAvailableError(f"{error}: MLTCP needs a kernel built with CONFIG_DEBUG_INFO_BTF=y") from None
    return build.compiled(SOURCES / f"{source}.bpf.c", hook)


def require_root(what: str) -> None:
    """Raise NotAvailableError, which names the capabilities, unless this process has those of the kernel mode."""
    capabilities.require(what, capabilities.WORKING if holds() else capabilities.KERNEL_MODE)


class Controls:
    """The congestion controls of this host.

    Args:
        rename: other names for controls, of the same length (so that tests run beside the host's own controls).
    """

    def __init__(self, rename: dict[str, str] | None = None) -> None:
        self._rename = rename or {}
        self._original = {new: old for old, new in self._rename.items()}

    @property
    def names(self) -> list[str]:
        """The names of the controls."""
        return [self._rename.get(name, name) for name in CONTROLS]

    def takes_jobs(self, name: str) -> bool:
        """Whether flows under this control belong to jobs: it is one of MLTCP's and is loaded."""
        return self._original.get(name, name) in MLTCP_CONTROLS and name in self.loaded()

    # -- load --------------------------------------------------------------------------------------------------------

    def load(self, names: Sequence[str]) -> list[str]:
        """Register the controls that are not registered yet, or of another build.

        Returns those that this call registered, one after the other: if one cannot be loaded, those before it stay.

        Raises:
            UsageError: an unknown name.
            NotAvailableError: not root, or the host or its kernel lacks something.
            MltcpError: another program owns a name, or the kernel refuses an object.
        """
        self.check_names(names)
        require_root("loading congestion controls")
        remove_former_pins()
        return [name for name in names if self._load_one(name)]

    def check_names(self, names: Sequence[str]) -> None:
        """Raise UsageError for a name that no control of ours has."""
        for name in names:
            if name not in self.names:
                raise UsageError(f"unknown congestion control {name!r}; choose from {', '.join(self.names)}")

    def _load_one(self, name: str) -> bool:
        for _ in range(_TRIES):
            before = self.registration(name)
            if before.state == "loaded":
                return False
            if before.state == "foreign":
                owner = f"struct_ops map {before.map_id}" if before.map_id else "a kernel module"
                raise MltcpError(f"{name} is registered by another program ({owner}); unload it there first")
            if self._register(before):
                return True
        raise MltcpError(f"{name}: other programs load and unload controls all the time")

    def _register(self, before: RegisteredControl) -> bool:
        """Register a control; False if another process did something in between, and the caller has to look again."""
        name, was_allowed = before.name, before.name in allowed()
        with ExitStack() as stack:
            opened = stack.enter_context(self._opened(CONTROLS[self._original.get(name, name)]))
            shared_ids = self._shared_ids()
            try:
                for shared, number in shared_ids.items():
                    opened.reuse(shared, stack.enter_context(open_map(number)))
            except BpfError as error:
                if error.errno == errno.ENOENT:
                    return False
                raise
            self._verify(opened, name)
            for shared in SHARED_MAPS:
                opened.bind(shared)
            if before.state == "older" and before.map_id is not None:
                unregister(before.map_id)
            try:
                opened.register_struct_ops(name).leave_attached()
            except BpfError as error:
                if error.errno == errno.EEXIST:
                    return False
                raise
            if not shared_ids and self._is_apart(opened.map(FLOWS).id):
                unregister(opened.map(name).id)
                return False
        if was_allowed:
            with suppress(NotAvailableError):  # of another network namespace: that is not worth a job
                self.allow_users([name])
        return True

    def _is_apart(self, flows: int) -> bool:
        """Whether another process, which found none either, registered a control with maps of its own meanwhile.

        No lock can keep it from that: a process in another mount namespace has other files.
        """
        return any(control.maps.get(FLOWS) != flows for control in self._own())

    @staticmethod
    def _verify(opened: BpfObject, name: str) -> None:
        """Load an object; if the kernel lacks something that it needs, the error names that."""
        try:
            opened.load()
        except BpfError as error:
            lacking = missing(opened.path)
            if lacking:
                raise NotAvailableError(f"{name} does not fit this kernel: {', '.join(lacking)}") from error
            raise

    def _opened(self, source: str) -> BpfObject:
        """The object of a source, whose control of connections without ECN has its name here too."""
        opened = BpfObject.open(control_object(source), self._rename)
        if _FALLBACK in opened.map_names():
            fallback = self._rename.get("mltcp_reno", "mltcp_reno")
            opened.set_initial(_FALLBACK, fallback.encode().ljust(16, b"\0"))
        return opened

    def allow_users(self, names: Sequence[str]) -> None:
        """Let every user choose these controls for their sockets; the kernel forgets it when they are unloaded.

        Raises:
            NotAvailableError: not root, or a control is not loaded, or this is not the host's own network namespace.
        """
        require_root("letting every user choose congestion controls")
        for _ in range(_TRIES):
            before = allowed()
            added = [name for name in names if name not in before]
            if not added:
                return
            try:
                ALLOWED.write_text(" ".join([*before, *added]))
            except OSError as error:
                if allowed() != before:
                    continue  # another process has unloaded one of them meanwhile
                what = f"{ALLOWED} does not take {', '.join(names)}"
                raise NotAvailableError(f"{what}: {error.strerror}") from None
            # Looked at again: another process may have replaced the list meanwhile.

    # -- state ------------------------------------------------------------------------------------------------------

    def registration(self, name: str) -> RegisteredControl:
        """The state of a control in the kernel."""
        return self.registrations([name])[0]

    def registrations(self, names: Sequence[str] | None = None) -> list[RegisteredControl]:
        """The state of each of these controls (all, if none is named) in the kernel."""
        names = list(names or self.names)
        ours = {control.name: control for control in self.in_kernel(names) if control.registered}
        present = available()
        return [self._registration(name, ours.get(name), name in present) for name in names]

    @staticmethod
    def _registration(name: str, ours: KernelControl | None, present: bool) -> RegisteredControl:
        if ours is not None:
            state = "loaded" if ours.build == build.own_build() else "older"
            return RegisteredControl(name, state, ours.map_id, ours.users, ours.build)
        return (
            RegisteredControl(name, "foreign", foreign_id(name))
            if present
            else RegisteredControl(name, "absent")
        )

    def in_kernel(self, names: Sequence[str] | None = None) -> list[KernelControl]:
        """Every control of any build that is registered or has users."""
        return kernel_controls(names or self.names)

    def _own(self) -> list[KernelControl]:
        """The registered controls of this build."""
        if not set(self.names) & set(available()):
            return []  # tells processes without privileges, too
        return [each for each in self.in_kernel() if each.registered and each.build == build.own_build()]

    def loaded(self) -> list[str]:
        """The controls of this build that are registered now."""
        own = {control.name for control in self._own()}
        return [name for name in self.names if name in own]

    def _shared_ids(self) -> dict[str, int]:
        """The ids of the maps that all controls of this build share; empty if none is in the kernel.

        The maps of registered controls come before those of controls that only have users left.
        """
        own = [control for control in self.in_kernel() if control.build == build.own_build()]
        sets = [each.maps for each in sorted(own, key=lambda each: (not each.registered, each.map_id))]
        complete = [maps for maps in sets if all(name in maps for name in SHARED_MAPS)]
        return {name: complete[0][name] for name in SHARED_MAPS} if complete else {}

    def shared_map(self, name: str) -> BpfMap:
        """One of the maps that all controls share.

        Raises:
            NothingLoadedError: no control of this build is in the kernel.
        """
        number = self._shared_ids().get(name)
        if number is not None:
            try:
                return open_map(number)
            except BpfError as error:
                if error.errno != errno.ENOENT:  # another program has unloaded the last one meanwhile
                    raise
        raise NothingLoadedError("no MLTCP control of this version is loaded on this host: mltcp load")

    def job_entries(self) -> JobEntries:
        """The entries of jobs, to be closed.

        Raises:
            NothingLoadedError: no control of this build is in the kernel.
        """
        return JobEntries(self.shared_map("mltcp_terms"), self.shared_map("mltcp_jobs"))

    def jobs(self) -> dict[int, KernelJob]:
        """Every job, by its number."""
        with self.job_entries() as entries:
            return dict(entries)

    def flows(self) -> list[Flow]:
        """Every open TCP connection that one of our controls has seen, in all network namespaces."""
        with self.shared_map("mltcp_flows") as flows, self.shared_map("mltcp_tags") as tags:
            with FlowWatch(flows, tags) as watch:
                return watch.flows()

    # -- unload ------------------------------------------------------------------------------------------------------

    def unload(self, names: Sequence[str] | None = None, force: bool = False) -> list[str]:
        """Unregister controls of any build (all, when none is named), wherever they were loaded; returns their names.

        Flows that use a control keep it until they close: the kernel holds it for them. So this fails while there are
        any, unless ``force`` is set.

        Raises:
            MltcpError: a job is running, or flows are using a control, and ``force`` is not set.
        """
        require_root("unloading congestion controls")
        self.check_names(names or ())
        wanted = [control for control in self.in_kernel(names) if control.registered]
        if not force:
            self._refuse_in_use(wanted)
        for control in wanted:
            unregister(control.map_id)
        remove_former_pins()
        gone = {control.name for control in wanted}
        return [name for name in names or self.names if name in gone]

    def _refuse_in_use(self, wanted: Sequence[KernelControl]) -> None:
        """Raise MltcpError if a control has users, which the kernel counts, or a job that may soon have some.

        The jobs of another build cannot be read.
        """
        own = any(control.build == build.own_build() for control in wanted) and self._shared_ids()
        running = [job.name for job in self.jobs().values() if job.is_owned] if own else []
        if running:
            raise MltcpError(
                f"job {running[0]} is running; end it, or use --force to let it run on without MLTCP"
            )
        for control in wanted:
            if control.users:
                raise MltcpError(
                    f"{control.users} flows are using {control.name}; close them, "
                    "or use --force to let them run out under it"
                )
