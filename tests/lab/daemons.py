"""Daemons and the namespaces that they are in, for tests."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from bench.lab.network import namespaces, sysctls
from mltcp.daemon.client.client import Client, NoDaemonError

START_S = 20.0


@contextmanager
def namespace_with_link():
    """A network namespace with lo and a veth pair, eth0 and eth1; gone afterwards, with all that is in it."""
    name = f"mltcptest-{secrets.token_hex(3)}"
    namespaces.create(name)
    try:
        # No packets but the test's: IPv6 would look for routers.
        namespaces.inside(name, lambda: sysctls.apply(sysctls.for_switch()))
        namespaces.netlink(name, _make_link)
        yield name
    finally:
        namespaces.kill_processes([name])
        namespaces.remove(name)


def _make_link(route):
    route.link("set", index=1, state="up")
    route.link("add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
    for name, address in (("eth0", "10.77.0.1"), ("eth1", "10.77.1.1")):
        index = route.link_lookup(ifname=name)[0]
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")


class Daemon:
    """A running daemon: its process, its socket, journal and log."""

    def __init__(self, namespace, directory, configuration):
        self.namespace = namespace
        self.directory = Path(directory)
        self.socket = self.directory / "run" / "sock"
        self.journal = self.directory / "journal"
        self._log = self.directory / "log"
        self._configuration = self.directory / "mltcpd.toml"
        text = (
            f'socket = "{self.socket}"\njournal = "{self.journal}"\ngroup = "no-such-group"\n{configuration}'
        )
        self._configuration.write_text(text)
        self.process = None

    @property
    def pid(self):
        return self.process.pid

    @property
    def log(self):
        return self._log.read_text()

    def start(self, answers=True):
        command = [sys.executable, "-m", "mltcp.cli", "daemon", "--config", os.fspath(self._configuration)]

        def spawn():
            with open(self._log, "a") as log:
                return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        self.process = namespaces.inside(self.namespace, spawn)
        if answers:
            self.await_answer()
        return self.process

    def await_answer(self):
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self.log
            try:
                with Client(self.socket) as client:
                    return client.status()
            except NoDaemonError:
                time.sleep(0.02)
        raise AssertionError(f"no answer: {self.log}")

    def stop(self, number=signal.SIGTERM):
        """End it; returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(20)


@contextmanager
def daemon_in(namespace, configuration=""):
    """A daemon in a namespace, ended by SIGTERM if it has not been."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        daemon = Daemon(namespace, directory, configuration)
        daemon.start()
        try:
            yield daemon
        finally:
            if daemon.process.poll() is None:
                daemon.stop()
