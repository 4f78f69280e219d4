"""Load, register, pin and unload the congestion controls.

A control is registered kernel-wide, for every network namespace, under its name. Its struct_ops map is pinned under
``/sys/fs/bpf/mltcp/controls``, so that any process can find it; the maps that all controls share (jobs, flows, records)
are pinned beside it. The pin is made *before* the control is registered, so that a crash cannot leave a registered
control without a pin. It can leave a pin of an unregistered control, which the next load replaces.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mltcp.core import capabilities
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.ebpf import build
from mltcp.ebpf.flow_watch import FlowWatch
from mltcp.ebpf.job_entries import OTHER_VERSION, JobEntries
from mltcp.ebpf.kernel_fit import missing
from mltcp.ebpf.kernel_types import RUNNING, has_tx_start_hook
from mltcp.ebpf.layout import Flow, KernelJob
from mltcp.ebpf.libbpf import MAP_TYPE_STRUCT_OPS, BpfError, BpfMap, BpfObject, all_maps
from mltcp.ebpf.mounts import BPFFS, ensure_bpffs

SOURCES = Path(__file__).resolve().parent
CONTROLS = {"mltcp_reno": "reno", "mltcp_cubic": "cubic", "mltcp_dctcp": "dctcp", "bpf_dctcp": "dctcp"}
"""Every control and its source; ``bpf_dctcp`` is plain DCTCP, for kernels that do not have it built in."""

MLTCP_CONTROLS = tuple(name for name in CONTROLS if name.startswith("mltcp_"))
DEFAULT_CONTROL = "mltcp_cubic"
"""The default control of ``mltcp run``, the daemon and the torch backend."""

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
LOCK = Path("/run/mltcp-controls.lock")
SHARED_MAPS = ("mltcp_jobs", "mltcp_counts", "mltcp_flows", "mltcp_records")
_REGISTERED = 1  # BPF_STRUCT_OPS_STATE_INUSE


@dataclass(frozen=True)
class Registration:
    """The state of a control in the kernel: ``loaded`` by us, ``foreign`` (another program's), or ``absent``."""

    name: str
    state: str
    map_id: int | None = None


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
    capabilities.require(what)


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    return Path(f"/proc/{pid}").exists()


class Controls:
    """The controls of one pin directory; the default one is the host's.

    Args:
        root: directory of the pins, on a bpffs.
        rename: other names for controls, of the same length (so that tests run beside the host's own controls).
    """

    def __init__(self, root: Path = BPFFS / "mltcp", rename: dict[str, str] | None = None) -> None:
        self.root = root
        self._rename = rename or {}
        self._original = {new: old for old, new in self._rename.items()}

    @property
    def names(self) -> list[str]:
        """The names of this directory's controls."""
        return [self._rename.get(name, name) for name in CONTROLS]

    def takes_jobs(self, name: str) -> bool:
        """Whether flows under this control belong to jobs: it is one of MLTCP's and is loaded."""
        return self._original.get(name, name) in MLTCP_CONTROLS and self._pinned_id(name) is not None

    def pin_path(self, name: str) -> Path:
        """The path at which the struct_ops map of a control is pinned."""
        return self.root / "controls" / name

    # -- load --------------------------------------------------------------------------------------------------------

    def load(self, names: Sequence[str]) -> list[str]:
        """Register the controls that are not registered yet; returns those that this call registered.

        One after the other: those before one that cannot be loaded stay registered.

        Raises:
            UsageError: an unknown name.
            NotAvailableError: not root, or the host or its kernel lacks something.
            MltcpError: another program owns a name, or the kernel refuses an object.
        """
        self.check_names(names)
        require_root("loading congestion controls")
        ensure_bpffs()
        with self._locked():
            return [name for name in names if self._load_one(name)]

    def check_names(self, names: Sequence[str]) -> None:
        """Raise UsageError for a name that no control of ours has."""
        for name in names:
            if name not in self.names:
                raise UsageError(f"unknown congestion control {name!r}; choose from {', '.join(self.names)}")

    def _load_one(self, name: str) -> bool:
        registration = self.registration(name)
        if registration.state == "loaded":
            return False
        if registration.state == "foreign":
            owner = f"struct_ops map {registration.map_id}" if registration.map_id else "a kernel module"
            raise MltcpError(f"{name} is registered by another program ({owner}); unload it there first")
        self.pin_path(name).parent.mkdir(parents=True, exist_ok=True)
        self.pin_path(name).unlink(missing_ok=True)
        with self._opened(CONTROLS[self._original.get(name, name)]) as opened:
            self._verify(opened, name)
            opened.map(name).pin(self.pin_path(name))
            try:
                opened.register_struct_ops(name).leave_attached()
            except BpfError as error:
                self.pin_path(name).unlink(missing_ok=True)
                if error.errno == errno.EEXIST:
                    raise MltcpError(f"{name} was registered by another program just now") from None
                raise
        return True

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
        opened = BpfObject.open(control_object(source), self._rename)
        for shared in SHARED_MAPS:
            opened.pin_at_load(shared, self.root / shared)
        return opened

    def allow_users(self, names: Sequence[str]) -> None:
        """Let every user choose these controls for their sockets; the kernel forgets it when they are unloaded.

        Raises:
            NotAvailableError: not root, or a control is not loaded, or this is not the host's own network namespace.
        """
        require_root("letting every user choose congestion controls")
        with self._locked():
            before = allowed()
            try:
                ALLOWED.write_text(" ".join([*before, *(name for name in names if name not in before)]))
            except OSError as error:
                what = f"{ALLOWED} does not take {', '.join(names)}"
                raise NotAvailableError(f"{what}: {error.strerror}") from None

    # -- state ------------------------------------------------------------------------------------------------------

    def registration(self, name: str) -> Registration:
        """The state of a control in the kernel."""
        ours = self._pinned_id(name)
        if ours is not None:
            return Registration(name, "loaded", ours)
        if name not in available():
            return Registration(name, "absent")
        ids = [
            found.id for found in all_maps() if found.type == MAP_TYPE_STRUCT_OPS and found.name == name[:15]
        ]
        return Registration(name, "foreign", ids[0] if ids else None)

    def _pinned_id(self, name: str) -> int | None:
        try:
            with BpfMap.pinned(self.pin_path(name)) as pinned:
                value = pinned.lookup(bytes(4)) or bytes(8)
                return pinned.id if int.from_bytes(value[4:8], "little") == _REGISTERED else None
        except FileNotFoundError:
            return None

    def loaded(self) -> list[str]:
        """The controls of this directory that are registered now."""
        return [name for name in self.names if self._pinned_id(name) is not None]

    def shared_map(self, name: str) -> BpfMap:
        """One of the maps that all controls share.

        Raises:
            MltcpError: nothing is loaded.
        """
        try:
            return BpfMap.pinned(self.root / name)
        except FileNotFoundError:
            raise MltcpError("no MLTCP control is loaded on this host: mltcp load") from None

    def job_entries(self) -> JobEntries:
        """The entries of jobs, to be closed.

        Raises:
            MltcpError: nothing is loaded, or controls of another version.
        """
        jobs = self.shared_map("mltcp_jobs")
        try:
            return JobEntries(jobs, BpfMap.pinned(self.root / "mltcp_counts"))
        except FileNotFoundError:
            jobs.close()
            raise MltcpError(OTHER_VERSION) from None

    def jobs(self) -> dict[int, KernelJob]:
        """Every job, by its number."""
        with self.job_entries() as entries:
            return dict(entries)

    def flows(self) -> list[Flow]:
        """Every open TCP connection that one of our controls has seen, in all network namespaces."""
        with self.shared_map("mltcp_flows") as flows, FlowWatch(flows) as watch:
            return watch.flows()

    # -- unload ------------------------------------------------------------------------------------------------------

    def unload(self, names: Sequence[str] | None = None, force: bool = False) -> list[str]:
        """Unregister controls (all, when none is named), and with the last one remove the shared maps.

        Flows that use a control keep it until they close: the kernel holds it for them. So this fails while there are
        any, unless ``force`` is set.

        Raises:
            MltcpError: a job is running, or flows are using a control, and ``force`` is not set.
        """
        require_root("unloading congestion controls")
        self.check_names(names or ())
        with self._locked():
            wanted = [name for name in (names or self.names) if self._pinned_id(name) is not None]
            if not force:
                self._refuse_in_use(wanted)
            for name in wanted:
                self._unregister(name)
            self._remove_leftovers()
        return wanted

    def _refuse_in_use(self, names: Sequence[str]) -> None:
        if not names:
            return
        running = [job.name for job in self.jobs().values() if is_alive(job.owner)]
        if running:
            raise MltcpError(
                f"job {running[0]} is running; end it, or use --force to let it run on without MLTCP"
            )
        flows = self.flows()
        for name in names:
            count = sum(flow.control == name for flow in flows)
            if count:
                raise MltcpError(
                    f"{count} flows are using {name}; close them, or use --force to let them run out under it"
                )

    def _unregister(self, name: str) -> None:
        with BpfMap.pinned(self.pin_path(name)) as pinned:
            pinned.delete(bytes(4))
        self.pin_path(name).unlink()

    def _remove_leftovers(self) -> None:
        """Remove pins of controls that were never registered, and the shared maps once no control is left."""
        if self.loaded() or not self.root.exists():
            return
        for path in [*(self.root / "controls").glob("*"), *(self.root / name for name in SHARED_MAPS)]:
            path.unlink(missing_ok=True)
        for directory in (self.root / "controls", self.root):
            if directory.exists():
                directory.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other loads and unloads on this host."""
        with open(LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
