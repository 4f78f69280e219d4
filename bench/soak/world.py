"""The world of a soak: a network namespace with a daemon, and a placement service whose engine runs jobs there."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from bench.cost.programs import ServiceProcess
from bench.lab.daemon_process import DaemonProcess
from bench.lab.network import namespaces
from bench.lab.network.single_link import namespace_with_link
from bench.soak.guest_task import GuestTask

SERVERS, GPUS = 3, 2
MECHANISMS = {
    "ebpf": "",
    "tc": 'interfaces = ["eth0"]\n[pacing]\nline_rate = "1gbit"\n',
}
"""Configurations of the daemon, by how it controls jobs."""


class Availability:
    """Whether a program is expected to answer now. Faults take it away; whoever asks compares before and after.

    Attributes:
        lock: held by the fault that has taken the program away.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._generation = 0
        self._away = 0
        self._back_s = time.monotonic()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The program need not answer in this block."""
        with self.lock:
            self._away += 1
            self._generation += 1
            try:
                yield
            finally:
                self._away -= 1
                self._back_s = time.monotonic()

    @property
    def back_for_s(self) -> float:
        """For how long the program has been back."""
        return time.monotonic() - self._back_s

    @property
    def moment(self) -> int | None:
        """A number that changes whenever the program was away; None while it is."""
        return None if self._away else self._generation


class World:
    """The programs under test, the place they run in, and what a guest must know of them."""

    def __init__(
        self, namespace: str, directory: Path, daemon: DaemonProcess, service: ServiceProcess
    ) -> None:
        self.namespace = namespace
        self.directory = directory
        self.daemon = daemon
        self.service = service
        self.daemon_availability = Availability()
        self.service_availability = Availability()

    def guest(self, kind: str, seed: int, uid: int) -> GuestTask:
        """The task of a guest in this world."""
        return GuestTask(
            kind, seed, uid, self.namespace, self.daemon.socket, self.service.address, self.directory
        )

    def restart_daemon(self, number: int, mechanism: str, pause_s: float) -> None:
        """End the daemon by a signal, and start it with another configuration after a pause."""
        with self.daemon_availability.away():
            self.daemon.stop(number)
            time.sleep(pause_s)
            self.daemon.configure(MECHANISMS[mechanism])
            self.daemon.start()

    def restart_service(self, number: int, pause_s: float) -> None:
        """End the service by a signal, and start it after a pause."""
        with self.service_availability.away():
            if number == signal.SIGKILL:
                self.service.kill()
            else:
                self.service.stop()
            time.sleep(pause_s)
            self.service.start()


@contextmanager
def soak_world() -> Iterator[World]:
    """A world whose daemon has not been started; at the end everything in it is ended and removed.

    Raises:
        NotAvailableError: the process may not make network namespaces.
        MltcpError: the service does not start.
    """
    with namespace_with_link() as namespace, tempfile.TemporaryDirectory(prefix="mltcp-soak-") as name:
        directory = Path(name)
        os.chmod(directory, 0o755)  # guests of other users connect to the daemon
        for part in ("daemon", "service", "locks"):
            (directory / part).mkdir()
        daemon = DaemonProcess(namespace, directory / "daemon", MECHANISMS["ebpf"])
        try:
            with ServiceProcess(
                directory / "service", "lwf-1", *_service_arguments(directory, namespace)
            ) as service:
                yield World(namespace, directory, daemon, service)
                service.stop()
        finally:
            if daemon.is_running():
                daemon.stop()


def _service_arguments(directory: Path, namespace: str) -> list[str]:
    names = [f"s{number}" for number in range(SERVERS)]
    cluster = {"servers": [{"name": name, "gpus": GPUS, "nic_bps": 10**10, "switch": "t"} for name in names]}
    hosts = [
        {
            "name": name,
            "address": "127.0.0.1",
            "interface": "lo",
            "enter": ["nsenter", f"--net={namespaces.NAMESPACES / namespace}"],
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
        *("--logs", f"{directory}/logs", "--grace", "2"),
    ]
