"""Four hosts of a lab that each run a real sshd, and a fifth, of no job, from which commands are started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.hosts.measures import read_counters
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import LabHost, LabSwitch, Topology, Trunk
from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NAMES = ("a", "b", "c", "d")
LINK = Link(300_000_000, 300_000, 40_000, 1500)
_PORT = 2022
_LAUNCHER_JOB = 15

_SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
PidFile {directory}/{name}.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
_SSH_CONFIG = """\
Host *
    Port {port}
    User root
    IdentityFile {directory}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {directory}/known_hosts
    StrictHostKeyChecking yes
"""


def is_available():
    """Whether the OpenSSH server and client are installed."""
    return Path(SSHD).exists() and shutil.which("ssh") is not None and shutil.which("ssh-keygen") is not None


class SshHosts:
    """The lab and its sshd processes; `file` is the hosts file."""

    def __init__(self, lab, directory):
        self.lab, self._directory = lab, directory
        self._carried = {}
        self.hosts = dict(zip(NAMES, lab.topology.hosts, strict=False))
        self.sshd = {}

    @property
    def file(self):
        return self._directory / "hosts.json"

    def namespace(self, name):
        """The network namespace of a host."""
        return self.lab.namespace(self.hosts[name].name)

    def remember_carried(self):
        """Count the bytes of every host from now on."""
        self._carried = {name: self._sent_bytes(name) for name in NAMES}

    def carried(self, name):
        """The bytes that a host has sent since."""
        return self._sent_bytes(name) - self._carried[name]

    def _sent_bytes(self, name):
        return namespaces.inside(self.namespace(name), lambda: read_counters("eth0")).sent_bytes

    @contextmanager
    def unplugged(self, name):
        """A host whose interface is down for the time of the context."""
        namespaces.netlink(self.namespace(name), lambda route: _set_interface(route, "down"))
        try:
            yield
        finally:
            namespaces.netlink(self.namespace(name), lambda route: _set_interface(route, "up"))

    def python(self, text, name="python"):
        """An executable that stands for `python` on a host; it is given the arguments of the agent."""
        path = self._directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def write(self, **changes):
        """Write the hosts file; `changes` are the fields of hosts by their names."""
        usual = self.python(f'export PYTHONPATH={ROOT}\nexec {sys.executable} "$@"')
        hosts = [
            {"name": name, "address": host.address, "interface": "eth0", "python": usual}
            | changes.get(name, {})
            for name, host in self.hosts.items()
        ]
        options = ["-F", str(self._directory / "ssh_config")]
        self.file.write_text(json.dumps({"hosts": hosts, "ssh_options": options}))

    def command(self, *arguments):
        """The command line of `mltcp-bench ARGUMENTS --hosts FILE`, on the fifth host."""
        launcher = self.lab.namespace("launcher")
        bench = [sys.executable, "-m", "bench.cli", *arguments, "--hosts", str(self.file)]
        return ["nsenter", f"--net=/run/netns/{launcher}", *bench]

    def run(self, *arguments):
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, check=False, timeout=300
        )

    def agents(self):
        """The processes of agents, by the name of their host."""
        return {name: _agent_in(self.namespace(name)) for name in NAMES}

    def start(self, stack):
        """Start an sshd in every host's namespace."""
        _make_keys(self._directory, [host.address for host in self.hosts.values()])
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines its unprivileged half
        for name, host in self.hosts.items():
            config = self._directory / f"sshd_{name}"
            config.write_text(
                _SSHD_CONFIG.format(port=_PORT, address=host.address, directory=self._directory, name=name)
            )
            entered = ["nsenter", f"--net=/run/netns/{self.namespace(name)}"]
            process = subprocess.Popen([*entered, SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            self.sshd[name] = process
        for name in NAMES:
            eventually(lambda name=name: _listens(self.namespace(name)))


def _set_interface(route, state):
    route.link("set", index=route.link_lookup(ifname="eth0")[0], state=state)


def _make_keys(directory, addresses):
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    host_key = (directory / "host_key.pub").read_text()
    (directory / "known_hosts").write_text(
        "".join(f"[{address}]:{_PORT} {host_key}" for address in addresses)
    )
    (directory / "ssh_config").write_text(_SSH_CONFIG.format(port=_PORT, directory=directory))


def _listens(namespace):
    read = Path("/proc/thread-self/net/tcp").read_text
    lines = namespaces.inside(namespace, read).splitlines()[1:]
    return any(line.split()[1].endswith(f":{_PORT:04X}") for line in lines)


def _agent_in(namespace):
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    for pid in map(int, found.stdout.split()):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[1:3] == [b"-m", b"bench.hosts.agent"]:
            return pid
    return None


def processes_in(namespace):
    """The processes in a network namespace, without those of sshd."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    return [pid for pid in found.stdout.split() if not _is_sshd(pid)]


def _is_sshd(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return True


def _topology():
    places = (("a", "left", 0, 0), ("b", "left", 1, 0), ("c", "right", 0, 1), ("d", "right", 1, 1))
    hosts = [LabHost(f"host{name}", switch, job, rank) for name, switch, job, rank in places]
    launcher = LabHost("launcher", "left", _LAUNCHER_JOB, 0)
    switches = (LabSwitch("left"), LabSwitch("right"))
    return Topology((*hosts, launcher), switches, (Trunk("trunk", "left", "right", LINK),))


@contextmanager
def ssh_hosts(directory):
    """Four hosts, two on each side of a bottleneck, each with an sshd; everything is removed at the end."""
    os.chmod(directory, 0o755)
    with Lab(_topology()) as lab, ExitStack() as stack:
        hosts = SshHosts(lab, directory)
        hosts.start(stack)
        hosts.write()
        yield hosts
