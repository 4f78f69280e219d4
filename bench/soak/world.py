"""The world of a soak: a network namespace with a daemon, a placement service that runs jobs there, and faults."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from bench.lab.programs import DaemonProcess, ServiceProcess
from bench.lab.slurm_cluster import missing
from bench.soak.guest_task import GuestTask
from bench.soak.host_state import command_of, processes_with
from bench.soak.slurm_site import SlurmSite, slurm_site
from bench.soak.watch import Availability, ServiceUnderTest, Watch, freeze, slots_given_twice
from mltcp.daemon.client.client import Client as DaemonClient
from placement.client.client import Client as ServiceClient

SERVERS, GPUS = 3, 2
DISK_MIB = 256
MARK = "MLTCP_SOAK"
"""The environment variable of all processes of a soak."""

MECHANISMS = {"ebpf": "", "tc": 'interfaces = ["eth0"]\n[pacing]\nline_rate = "1gbit"\n'}
"""Configurations of the daemon, by how it controls jobs."""

_TIMEOUT_S = 30.0


class World:
    """The programs under test, the place they run in, and what a guest must know of them.

    Attributes:
        namespace: the network namespace of all but Slurm.
        directory: of all files.
        disk: a small file system of the service's store and logs.
        daemon: mltcpd.
        service: the placement service with the local engine.
        slurm: the part with Slurm; None where it is not installed.
    """

    def __init__(
        self,
        namespace: str,
        directory: Path,
        daemon: DaemonProcess,
        service: ServiceProcess,
        slurm: SlurmSite | None,
    ) -> None:
        self.namespace = namespace
        self.directory = directory
        self.disk = directory / "service"
        self.daemon = daemon
        self.service = ServiceUnderTest(service)
        self.slurm = slurm
        self.daemon_availability = Availability()

    def guest(self, kind: str, seed: int, uid: int) -> GuestTask:
        """The task of a guest in this world."""
        return GuestTask(
            kind,
            seed,
            uid,
            self.namespace,
            self.daemon.socket,
            self.service.address,
            self.directory,
            None if self.slurm is None else self.slurm.place,
        )

    def restart_daemon(self, number: int, mechanism: str, pause_s: float) -> None:
        """End the daemon by a signal, and start it with another configuration after a pause."""
        with self.daemon_availability.away():
            self.daemon.stop(number)
            time.sleep(pause_s)
            self.daemon.configure(MECHANISMS[mechanism])
            self.daemon.start()


@contextmanager
def soak_world() -> Iterator[World]:
    """A world whose daemon has not been started; at the end everything in it is ended and removed.

    Raises:
        NotAvailableError: the process may not make network namespaces.
        MltcpError: the service does not start.
    """
    with ExitStack() as stack:
        namespace = stack.enter_context(namespace_with_link())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-soak-")))
        os.chmod(directory, 0o755)  # guests of other users connect to the daemon
        for part in ("daemon", "service", "locks", "ends"):
            (directory / part).mkdir()
        stack.enter_context(_marked(directory))
        stack.enter_context(_small_disk(directory / "service"))
        slurm = None if missing() else stack.enter_context(slurm_site(directory))
        daemon = DaemonProcess(namespace, directory / "daemon", MECHANISMS["ebpf"])
        try:
            with ServiceProcess(
                directory / "service", "lwf-1", *_service_arguments(directory, namespace)
            ) as service:
                yield World(namespace, directory, daemon, service, slurm)
                service.stop()
        finally:
            if daemon.is_running():
                daemon.stop()


@contextmanager
def _marked(directory: Path) -> Iterator[None]:
    """Mark this process, and all that it and its descendants start, so that what they leave behind is found."""
    os.environ[MARK] = str(directory)
    try:
        yield
    finally:
        del os.environ[MARK]


@contextmanager
def _small_disk(directory: Path) -> Iterator[None]:
    options = f"size={DISK_MIB}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _service_arguments(directory: Path, namespace: str) -> list[str]:
    names = [f"s{number}" for number in range(SERVERS)]
    cluster = {"servers": [{"name": name, "gpus": GPUS, "nic_bps": 10**10, "switch": "t"} for name in names]}
    hosts = [
        {
            "name": name,
            "address": "127.0.0.1",
            "interface": "lo",
            "enter": ["nice", "-n", "10", "nsenter", f"--net={namespaces.NAMESPACES / namespace}"],
            "gpus": [f"{name}-{gpu}" for gpu in range(GPUS)],
        }
        for name in names
    ]
    (directory / "cluster.json").write_text(json.dumps(cluster))
    (directory / "hosts.json").write_text(json.dumps({"hosts": hosts}))
    return [
        *(
            "--cluster",
            f"{directory}/cluster.json",
            "--engine",
            "local",
            "--hosts",
            f"{directory}/hosts.json",
        ),
        *("--logs", f"{directory}/service/logs", "--grace", "2"),
    ]


def watch_daemon(world: World) -> Watch:
    """A watch of the daemon's status."""

    def ask() -> list[str]:
        with DaemonClient(world.daemon.socket, _TIMEOUT_S) as client:
            client.status()
        return []

    return Watch("mltcpd", world.daemon_availability, ask)


def watch_service(world: World) -> Watch:
    """A watch of the service's status: no slot may have two jobs."""

    def ask() -> list[str]:
        with ServiceClient(world.service.address, timeout_s=_TIMEOUT_S) as client:
            return slots_given_twice(client)

    return Watch("service", world.service.availability, ask, pid=lambda: world.service.pid)


# -- faults: kills and stops of the programs, interfaces that go and come back, ranks that die -------------------------

_LONGEST_PAUSE_S = 2.0
_LONGEST_FREEZE_S = 6.0

Fault = Callable[[World, random.Random], None]


def kill_daemon(world: World, draw: random.Random) -> None:
    """SIGKILL to the daemon; it comes back with the other mechanism or the same."""
    world.restart_daemon(signal.SIGKILL, draw.choice(list(MECHANISMS)), draw.uniform(0, _LONGEST_PAUSE_S))


def end_daemon(world: World, draw: random.Random) -> None:
    """SIGTERM to the daemon; it comes back."""
    world.restart_daemon(signal.SIGTERM, draw.choice(list(MECHANISMS)), draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_daemon(world: World, draw: random.Random) -> None:
    """SIGSTOP to the daemon, and SIGCONT."""
    with world.daemon_availability.away():
        freeze(world.daemon.pid, draw.uniform(0, _LONGEST_FREEZE_S))


def kill_service(world: World, draw: random.Random) -> None:
    """SIGKILL to the service; it comes back on the same store."""
    world.service.restart(signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def end_service(world: World, draw: random.Random) -> None:
    """SIGTERM to the service; it comes back."""
    world.service.restart(signal.SIGTERM, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_service(world: World, draw: random.Random) -> None:
    """SIGSTOP to the service, and SIGCONT."""
    with world.service.availability.away():
        freeze(world.service.pid, draw.uniform(0, _LONGEST_FREEZE_S))


def full_disk(world: World, draw: random.Random) -> None:
    """The file system of the service's store and of its jobs' logs is full for a while."""
    filler = world.disk / "filler"
    try:
        with open(filler, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        time.sleep(draw.uniform(0, _LONGEST_FREEZE_S))
    finally:
        filler.unlink()


def interface_down(world: World, draw: random.Random) -> None:
    """The paced interface goes down, and up again."""
    _link(world, "set", ifname="eth0", state="down")
    time.sleep(draw.uniform(0, _LONGEST_PAUSE_S))
    _link(world, "set", ifname="eth0", state="up")


def interface_gone(world: World, draw: random.Random) -> None:
    """The paced interface is removed, and made again."""
    _link(world, "del", ifname="eth0")
    time.sleep(draw.uniform(0, _LONGEST_PAUSE_S))
    _link(world, "add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
    for name in ("eth0", "eth1"):
        _link(world, "set", ifname=name, state="up")


def kill_rank(world: World, draw: random.Random) -> None:
    """SIGKILL to a rank of some job."""
    locks = list((world.directory / "locks").iterdir())
    for lock in draw.sample(locks, len(locks)):
        pid = lock.read_text().partition(" ")[0]
        if pid and _is_rank(pid):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            return


def kill_launcher(world: World, draw: random.Random) -> None:
    """SIGKILL to a launcher of the local engine, whose ranks must not outlive it."""
    mark = f"{MARK}={world.directory}".encode()
    launchers = [pid for pid in processes_with(mark) if b"placement.engines.node" in command_of(pid)]
    if launchers:
        with suppress(ProcessLookupError):
            os.kill(draw.choice(launchers), signal.SIGKILL)


FAULTS: dict[str, tuple[Fault, int]] = {
    "kill daemon": (kill_daemon, 4),
    "end daemon": (end_daemon, 1),
    "freeze daemon": (freeze_daemon, 2),
    "kill service": (kill_service, 2),
    "end service": (end_service, 1),
    "freeze service": (freeze_service, 1),
    "interface down": (interface_down, 2),
    "interface gone": (interface_gone, 2),
    "kill rank": (kill_rank, 3),
    "kill launcher": (kill_launcher, 3),
    "full disk": (full_disk, 2),
}
"""Each fault with its weight."""


def _link(world: World, command: str, **arguments: Any) -> None:
    def act(route: Any) -> None:
        if command != "add":
            arguments["index"] = route.link_lookup(ifname=arguments.pop("ifname"))[0]
        route.link(command, **arguments)

    namespaces.netlink(world.namespace, act)


def _is_rank(pid: str) -> bool:
    """Whether the process, whose number may have been used again, is a rank of a soak's job."""
    return b"bench.soak.rank" in command_of(int(pid))
