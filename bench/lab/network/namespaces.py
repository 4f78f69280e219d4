"""Network namespaces: create, enter and remove them, and run a function inside one.

A network namespace belongs to a thread, not to a process. This module runs whatever it does inside a namespace on a
new thread that ends there, so that the calling thread never changes its namespace, even after an error or an interrupt.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from bench.lab.network import sysctls
from mltcp.core import capabilities
from mltcp.core.errors import MltcpError, UsageError

T = TypeVar("T")

NAMESPACES = Path(netns.NETNS_RUN_DIR)
LOOPBACK = 1
"""The index that the kernel gives lo in every namespace."""

_CLONE_NEWNET = 0x40000000
_DEATH_TIMEOUT_S = 5.0


def require_privileges() -> None:
    """Check that this process may create network namespaces.

    Raises:
        NotAvailableError: it lacks CAP_NET_ADMIN or CAP_SYS_ADMIN.
    """
    capabilities.require(
        "the lab, to make network namespaces,", (capabilities.CAP_NET_ADMIN, capabilities.CAP_SYS_ADMIN)
    )


def create(name: str) -> None:
    """Create the network namespace ``name``, as ``ip netns add`` does."""

    def unshare_and_name() -> None:
        _unshare()
        netns.attach(name, "thread-self")

    to_completion(unshare_and_name)


def remove(name: str) -> None:
    """Remove the name, if it exists; the namespace is freed with its last process and socket."""
    with suppress(FileNotFoundError):
        netns.remove(name)


def names(prefix: str) -> list[str]:
    """The namespaces whose names begin with ``prefix``, sorted."""
    return sorted(name for name in netns.listnetns() if name.startswith(prefix))


def enter(name: str) -> None:
    """Move the calling thread into the namespace ``name``; processes and threads that it starts inherit it.

    Raises:
        UsageError: there is no such namespace.
    """
    try:
        netns.setns(name, flags=0)
    except FileNotFoundError:
        raise UsageError(f"network namespace {name!r} does not exist") from None


def inside(name: str, action: Callable[[], T]) -> T:
    """Run ``action`` on a thread in the namespace ``name``; returns its result. Sockets that it opens stay there."""

    def enter_and_act() -> T:
        enter(name)
        return action()

    return to_completion(enter_and_act)


def netlink(name: str, action: Callable[[Any], T]) -> T:
    """Run ``action`` in the namespace ``name`` with a pyroute2 ``IPRoute`` of that namespace; returns its result.

    Raises:
        MltcpError: the kernel refused a request; the message includes the kernel's.
    """

    def talk() -> T:
        with IPRoute(ext_ack=True) as route:
            return action(route)

    try:
        return inside(name, talk)
    except NetlinkError as error:
        raise MltcpError(f"network namespace {name}: the kernel refused a request: {error}") from error


def in_scratch(action: Callable[[Any], T]) -> T:
    """Run ``action`` with an ``IPRoute`` of a new namespace without a name; returns its result."""

    def unshare_and_talk() -> T:
        _unshare()
        with IPRoute(ext_ack=True) as route:
            return action(route)

    return to_completion(unshare_and_talk)


def kill_processes(namespaces: Iterable[str]) -> None:
    """Kill every process in one of ``namespaces``, except this one, and wait until they have ended."""
    wanted = {_identity(NAMESPACES / name) for name in namespaces} - {None}
    deadline = time.monotonic() + _DEATH_TIMEOUT_S
    # A process may fork while it is being killed: repeat until none is found.
    while (found := list(_processes_in(wanted))) and time.monotonic() < deadline:
        for pid in found:
            _kill(pid, wanted, deadline)


def _processes_in(wanted: set[tuple[int, int] | None]) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _identity(entry / "ns/net") in wanted:
            yield int(entry.name)


def _kill(pid: int, wanted: set[tuple[int, int] | None], deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The pid may have been reused since it was found; the pidfd refers to one process only: check again.
        if _identity(Path(f"/proc/{pid}/ns/net")) in wanted:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise MltcpError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}")


def to_completion(action: Callable[[], T]) -> T:
    """Run ``action`` on a thread of its own, where no signal handler runs; returns its result.

    If a signal handler raises in the caller meanwhile, ``action`` either finishes first or is not begun.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    gate: SimpleQueue[None] = SimpleQueue()
    done: SimpleQueue[None] = SimpleQueue()

    def act() -> None:
        gate.get()
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)
        done.put(None)

    # A signal handler may raise while the thread is being started: the thread then waits for ever, and does nothing.
    threading.Thread(target=act, name="lab", daemon=True).start()
    _finish(gate, done, lambda: bool(results or errors))
    if errors:
        raise errors[0]
    return results[0]


def _finish(gate: SimpleQueue[None], done: SimpleQueue[None], finished: Callable[[], bool]) -> None:
    # An interrupted action is finished first, so that clean-up does not race with it. Thread.join would not do: when it
    # is interrupted, Python 3.11 considers the thread ended.
    interrupted: BaseException | None = None
    while not finished():
        try:
            gate.put(None)
            done.get()
        except BaseException as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


# -- a namespace with a single link ------------------------------------------------------------------------------------

_ENDS = (("eth0", "10.77.0.1"), ("eth1", "10.77.1.1"))


@contextmanager
def namespace_with_link() -> Iterator[str]:
    """A network namespace with lo and a veth pair, eth0 and eth1; removed at the end, with all processes in it.

    Raises:
        NotAvailableError: the process may not make network namespaces.
    """
    require_privileges()
    name = f"mltcp-link-{secrets.token_hex(3)}"
    create(name)
    try:
        # IPv6 is off: it would send router solicitations into what is measured.
        inside(name, lambda: sysctls.apply(sysctls.for_switch()))
        netlink(name, _make_link)
        yield name
    finally:
        kill_processes([name])
        remove(name)


def _make_link(route: Any) -> None:
    route.link("set", index=LOOPBACK, state="up")
    (first, _), (second, _) = _ENDS
    route.link("add", ifname=first, kind="veth", peer={"ifname": second})
    for name, address in _ENDS:
        index = route.link_lookup(ifname=name)[0]
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")
