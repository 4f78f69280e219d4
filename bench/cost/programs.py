"""Programs of this project as processes, for benchmarks and tests: a gate, and a placement service."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from mltcp.core.errors import MltcpError

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
