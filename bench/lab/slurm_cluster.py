"""A real Slurm cluster on one machine: munged, slurmctld, a slurmd a node, and slurmdbd with its database if wanted.

Every daemon runs in the foreground as a child of this process, with all its files in one directory, beside whatever
Slurm the machine itself has. GPUs are null devices: Slurm counts and numbers them as it does real ones.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from mltcp.core.address import free_port
from mltcp.core.errors import MltcpError, NotAvailableError

CONTROLLER = ("munged", "slurmctld", "scontrol")
NODES = (*CONTROLLER, "slurmd", "sbatch", "srun", "squeue", "scancel")
ACCOUNTING = (*NODES, "slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
"""The programs that a cluster without running nodes, one with them, and one with accounting needs.

Debian's packages: munge, slurmctld, slurm-client, slurmd; slurmdbd and mariadb-server.
"""

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_START_S = 90.0
_POLL_S = 0.1
"""Each look may start a program."""


_SETTINGS = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
StateSaveLocation={directory}/state
SlurmctldPort={controller_port}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldTimeout=30
SlurmdPidFile={directory}/%n.pid
SlurmdSpoolDir={directory}/%n
SlurmdLogFile={directory}/%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=60
ReturnToService=2
KillWait=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_DBD_SETTINGS = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=none
StorageLoc=slurm
"""


def missing(programs: Sequence[str] = NODES) -> list[str]:
    """Those of the programs that are not installed."""
    return [name for name in programs if shutil.which(name, path=_PATH) is None]


class SlurmCluster:
    """A cluster; a context manager that starts it and ends all of it, jobs included.

    Attributes:
        environment: in which Slurm's commands find this cluster.

    Args:
        nodes: the number of GPUs of each node.
        gpu_types: the type of the GPUs of a node, where they have one.
        cpus, memory_mb: of each node; 0: as Slurm assumes.
        running: whether the nodes run; otherwise Slurm knows them only.
        accounting: whether ``sacct`` works, with a database of its own.
        topology: the topology.conf; None: none.
        settings: further lines of slurm.conf, which are the last ones to count.
        files: further files beside slurm.conf, by name.
        nice: of all daemons and jobs.

    Raises:
        NotAvailableError: a program is not installed.
        MltcpError: a daemon does not start.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        gpu_types: Mapping[str, str] | None = None,
        cpus: int = 64,
        memory_mb: int = 0,
        running: bool = True,
        accounting: bool = False,
        topology: str | None = None,
        settings: str = "",
        files: Mapping[str, str] | None = None,
        nice: int = 0,
    ) -> None:
        lacking = missing(ACCOUNTING if accounting else NODES if running else CONTROLLER)
        if lacking:
            raise NotAvailableError(f"a Slurm cluster needs {', '.join(lacking)}, which are not installed")
        self.directory = Path(tempfile.mkdtemp(prefix="mltcp-slurm-"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "PATH": f"{_PATH}:{os.environ.get('PATH', '')}",
        }
        self._nodes, self._cpus, self._running, self._accounting = dict(nodes), cpus, running, accounting
        self._memory_mb, self._nice, self._gpu_types = memory_mb, nice, dict(gpu_types or {})
        self._ports = {name: free_port() for name in ("slurmctld", "slurmdbd", "database", *nodes)}
        self._commands: dict[str, Sequence[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write(topology, settings)
        for name, text in (files or {}).items():
            (self.directory / name).write_text(text)

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(self, *command: str) -> str:
        """Run one of Slurm's commands; returns its output. Raises MltcpError: it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MltcpError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def pid(self, daemon: str) -> int:
        """The process number of a daemon: ``munged``, ``slurmctld``, ``slurmdbd``, ``slurmd.NODE``."""
        return self._processes[daemon].pid

    def kill(self, daemon: str, number: int = signal.SIGKILL) -> None:
        """End a daemon by a signal."""
        process = self._processes.pop(daemon)
        process.send_signal(number)
        process.wait()

    def start(self, daemon: str) -> None:
        """Start a daemon again that was killed."""
        if daemon == "munged":
            (self.directory / "munge.sock.lock").unlink(missing_ok=True)
        self._launch(daemon)

    def revive(self) -> list[str]:
        """Start those daemons again that have ended by themselves, as systemd would; returns their names."""
        ended = [name for name, process in list(self._processes.items()) if process.poll() is not None]
        for name in ended:
            self.start(name)
        return ended

    def saved(self) -> dict[str, bytes]:
        """The state that slurmctld has written, by file; it does so every five seconds."""
        found = {}
        for path in (self.directory / "state").glob("*_state*"):
            if path.suffix != ".new":
                with suppress(FileNotFoundError):  # slurmctld renames them meanwhile
                    found[path.name] = path.read_bytes()
        return found

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """Put what slurmctld, which must not run, had written down before in the place of what it has."""
        for path in (self.directory / "state").glob("*_state*"):
            path.unlink()
        for name, content in saved.items():
            (self.directory / "state" / name).write_bytes(content)

    def log(self, daemon: str) -> str:
        """The log of a daemon."""
        with suppress(OSError):
            return (self.directory / f"{daemon}.log").read_text(errors="replace")
        return ""

    def close(self) -> None:
        """End every daemon and every job, and remove all files; idempotent."""
        for process in self._processes.values():  # nothing that they have is kept
            process.kill()
        self._end_jobs()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, topology: str | None, settings: str) -> None:
        user = getpass.getuser()
        text = _SETTINGS.format(user=user, directory=self.directory, controller_port=self._ports["slurmctld"])
        if topology is not None:
            text += "TopologyPlugin=topology/tree\n"
            (self.directory / "topology.conf").write_text(topology)
        if self._accounting:
            text += (
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePort={self._ports['slurmdbd']}\n"
                f"AccountingStoragePass={self.directory}/munge.sock\n"  # commands take the socket from here
            )
        for name, gpus in self._nodes.items():
            kind = self._gpu_types.get(name, "")
            gres = f" Gres=gpu:{f'{kind}:' if kind else ''}{gpus}" if gpus else ""
            gres += f" RealMemory={self._memory_mb}" if self._memory_mb else ""
            text += (
                f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={self._ports[name]} "
                f"CPUs={self._cpus}{gres} State=UNKNOWN\n"
            )
        (self.directory / "slurm.conf").write_text(text + settings)
        most = max(self._nodes.values(), default=0)
        for number in range(most):
            _null_device(self.directory / f"gpu{number}")
        lines = [
            f"NodeName={name} Name=gpu {f'Type={self._gpu_types[name]} ' if name in self._gpu_types else ''}"
            f"File={self.directory}/gpu{'[0-' + str(gpus - 1) + ']' if gpus > 1 else '0'}"
            for name, gpus in self._nodes.items()
            if gpus
        ]
        (self.directory / "gres.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        dbd = self.directory / "slurmdbd.conf"
        dbd.write_text(
            _DBD_SETTINGS.format(
                directory=self.directory,
                user=user,
                port=self._ports["slurmdbd"],
                database_port=self._ports["database"],
            )
        )
        dbd.chmod(0o600)
        key = self.directory / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._commands = self._all_commands()

    def _all_commands(self) -> dict[str, Sequence[str]]:
        at, conf = self.directory, str(self.directory / "slurm.conf")
        commands: dict[str, Sequence[str]] = {
            "munged": (
                *("munged", "--foreground", "--force", f"--key-file={at}/key", f"--socket={at}/munge.sock"),
                *(f"--pid-file={at}/munged.pid", f"--log-file={at}/munge.log", f"--seed-file={at}/seed"),
            )
        }
        if self._accounting:
            commands["mariadbd"] = (
                *("mariadbd", "--no-defaults", f"--datadir={at}/database", "--skip-grant-tables"),
                *(f"--socket={at}/db.sock", f"--port={self._ports['database']}", "--bind-address=127.0.0.1"),
                *(f"--pid-file={at}/mariadbd.pid", f"--user={getpass.getuser()}"),
                "--innodb-buffer-pool-size=64M",
            )
            commands["slurmdbd"] = ("slurmdbd", "-D")
        commands["slurmctld"] = ("slurmctld", "-D", "-f", conf)
        if self._running:
            for name in self._nodes:
                commands[f"slurmd.{name}"] = ("slurmd", "-D", "-f", conf, "-N", name)
        return commands

    def _start_all(self) -> None:
        self._launch("munged")
        self._await((self.directory / "munge.sock").exists, "munged")
        if self._accounting:
            self._start_accounting()
        self._launch("slurmctld")
        self._await(lambda: self._works("scontrol", "ping"), "slurmctld")
        if self._running:
            for name in self._nodes:
                self._launch(f"slurmd.{name}")
            self._await(self._all_nodes_idle, "slurmctld")

    def _start_accounting(self) -> None:
        install = [
            *("mariadb-install-db", "--no-defaults", f"--datadir={self.directory}/database"),
            *(f"--user={getpass.getuser()}", "--auth-root-authentication-method=normal", "--skip-test-db"),
        ]
        self.command(*install)
        self._launch("mariadbd")
        self._await(lambda: _listens(self._ports["database"]), "mariadbd")
        self._launch("slurmdbd")
        self._await(lambda: self._works("sacctmgr", "--immediate", "add", "cluster", "lab"), "slurmdbd")

    def _launch(self, daemon: str) -> None:
        with open(self.directory / f"{daemon}.log", "ab") as log:
            self._processes[daemon] = subprocess.Popen(
                [*(("nice", "-n", str(self._nice)) if self._nice else ()), *self._commands[daemon]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _works(self, *command: str) -> bool:
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def _all_nodes_idle(self) -> bool:
        lines = self.command("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()
        return {tuple(each.split()) for each in lines} == {(name, "idle") for name in self._nodes}

    def _await(self, condition: Callable[[], bool], daemon: str) -> None:
        end_s = time.monotonic() + _LONGEST_START_S
        while not condition():
            process = self._processes[daemon]
            if process.poll() is not None or time.monotonic() > end_s:
                last = self.log(daemon).strip().splitlines()[-3:]
                raise MltcpError(f"{daemon} does not start: {'; '.join(last)}")
            time.sleep(_POLL_S)

    def _end_jobs(self) -> None:
        """Kill what daemons have left: slurmstepd and jobs survive slurmd, and carry the name of its configuration."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        ours = {process.pid for process in self._processes.values()} | {os.getpid()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in ours:
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)


def _null_device(path: Path) -> None:
    """Make a device for Slurm, which takes nothing else for a GPU."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        raise NotAvailableError(
            "a Slurm cluster needs devices for its GPUs, which only root can make"
        ) from None


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
