"""Programs of this project as processes, for the lab, benchmarks and tests: mltcpd, a gate, and a placement service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, NoDaemonError

# -- mltcpd ------------------------------------------------------------------------------------------------------------

_START_S = 120.0
_END_S = 20.0
_RETRY_S = 0.02


class DaemonProcess:
    """A daemon whose configuration, socket, journal and log are in one directory. It is not started yet.

    Args:
        namespace: the network namespace that it runs in.
        directory: an existing directory of its own.
        configuration: TOML, without the socket and the journal.
    """

    def __init__(self, namespace: str, directory: Path, configuration: str = "") -> None:
        self.namespace = namespace
        self.socket = directory / "run" / "sock"
        self.journal = directory / "journal"
        self._log = directory / "log"
        self._configuration = directory / "mltcpd.toml"
        self.configure(configuration)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, configuration: str) -> None:
        """Write another configuration for the next start: TOML, without the socket and the journal."""
        self._configuration.write_text(
            f'socket = "{self.socket}"\njournal = "{self.journal}"\n{configuration}'
        )

    @property
    def pid(self) -> int:
        """The process number of the daemon that was started last."""
        return self._started().pid

    @property
    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    @property
    def last_line(self) -> str:
        """The last line of its log that is not empty."""
        lines = [line for line in self.log.split("\n") if line]
        return lines[-1] if lines else "it wrote nothing"

    def start(self, answers: bool = True) -> subprocess.Popen[bytes]:
        """Start it, and wait until it answers unless ``answers`` is false.

        Raises:
            MltcpError: it ends, or does not answer in time.
        """
        command = [sys.executable, "-m", "mltcp.cli", "daemon", "--config", os.fspath(self._configuration)]

        def spawn() -> subprocess.Popen[bytes]:
            with open(self._log, "a") as log:
                return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        self.process = namespaces.inside(self.namespace, spawn)
        if answers:
            self._await_answer(self.process)
        return self.process

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; returns its exit status."""
        process = self._started()
        process.send_signal(number)
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def restore(self) -> None:
        """Run ``mltcp restore``, as systemd does after the daemon's end.

        Raises:
            MltcpError: it fails.
        """
        command = [sys.executable, "-m", "mltcp.cli", "restore", "--journal", os.fspath(self.journal)]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True)

        done = namespaces.inside(self.namespace, run)
        if done.returncode:
            raise MltcpError(f"mltcp restore ends with {done.returncode}: {done.stderr.strip()}")

    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError("the daemon was not started")
        return self.process

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise MltcpError(f"the daemon does not start: {self.last_line}")
            try:
                with Client(self.socket) as client:
                    client.status()
                return
            except NoDaemonError:
                time.sleep(_RETRY_S)
        raise MltcpError(f"the daemon does not answer within {_START_S:g} s: {self.last_line}")


@contextmanager
def running_daemon(namespace: str, configuration: str = "") -> Iterator[DaemonProcess]:
    """A daemon that answers; at the end it is stopped by SIGTERM, if it still runs.

    Raises:
        MltcpError: it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="mltcp-host-") as directory:
        os.chmod(directory, 0o755)  # processes of other users may connect
        daemon = DaemonProcess(namespace, Path(directory), configuration)
        try:
            daemon.start()
            yield daemon
        finally:
            if daemon.is_running():
                daemon.stop()


# -- a host of the lab with a daemon of its own ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pacing:
    """Configuration of pacing: the rate law, its control interval, F, and constants other than the defaults.

    With `by_socket`, the ranks pace their own connections and no daemon runs.
    """

    law: str
    interval_s: float
    aggressiveness: Aggressiveness
    constants: tuple[tuple[str, float], ...] = ()
    by_socket: bool = False


@contextmanager
def paced_host(namespace: str, interface: str, line_rate_bps: int, pacing: Pacing) -> Iterator[Path]:
    """Run a daemon in a namespace that paces what leaves by an interface; yields the path of its socket.

    Raises:
        MltcpError: the daemon does not start, or ends with an error.
    """
    with running_daemon(namespace, _configuration(interface, line_rate_bps, pacing)) as daemon:
        yield daemon.socket
        status = daemon.stop()
        if status != 0:
            raise MltcpError(f"the daemon of {namespace} ended with {status}: {daemon.last_line}")


def _configuration(interface: str, line_rate_bps: int, pacing: Pacing) -> str:
    law = pacing.aggressiveness
    lines = [
        f'interfaces = ["{interface}"]',
        "controls = []",
        "aside_above = 0",  # what is compared is the law
        "[pacing]",
        f'law = "{pacing.law}"',
        f"interval = {pacing.interval_s!r}",
        f'line_rate = "{line_rate_bps}bit"',
        "[pacing.constants]",
        *(f"{name} = {value!r}" for name, value in pacing.constants),
        "[function]",
        f'shape = "{law.shape.label}"',
        f"slope = {float(law.slope)!r}",
        f"intercept = {float(law.intercept)!r}",
    ]
    return "\n".join(lines) + "\n"


# -- a gate, and a placement service -----------------------------------------------------------------------------------

_PLACEMENT = (sys.executable, "-m", "placement.cli")


@contextmanager
def gate_process(socket: Path, policy: str = "ada-srsf") -> Iterator[subprocess.Popen[str]]:
    """``mltcp-placement gate`` at a Unix socket, from when it listens; ended at the end.

    Raises:
        MltcpError: it does not start.
    """
    command = [*_PLACEMENT, "gate", "--listen", f"unix:{socket}", "--policy", policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise MltcpError("the gate does not start")
            yield process
        finally:
            process.terminate()


class ServiceProcess:
    """``mltcp-placement serve`` at a Unix socket in a directory, with its state there too.

    A context manager that kills it at the end. It can be killed and started again in between.

    Args:
        directory: an existing one.
        policy: the service's default policy.
        arguments: further ones of the command.
        environment: of the process; None: as here.
        log: a file to which its standard error is appended; None: that of this process.

    Raises:
        MltcpError: it does not start.
    """

    def __init__(
        self,
        directory: Path | str,
        policy: str = "lwf-1",
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self._environment, self._log = environment, log
        self.address = f"unix:{directory}/s"
        self.command = [
            *(*_PLACEMENT, "serve", "--json", "--policy", policy),
            *("--address", self.address, "--state", f"{directory}/state.db", *arguments),
        ]
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; returns when it listens."""
        with ExitStack() as stack:
            log = None if self._log is None else stack.enter_context(open(self._log, "ab"))
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise MltcpError(f"the service does not start: exit status {self.process.wait()}")
        address = json.loads(line)["address"]
        if address != self.address:
            raise MltcpError(f"the service listens at {address}, not at {self.address}")
        return self.process

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """End it by SIGTERM; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        status = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
