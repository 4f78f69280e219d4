"""A host of the lab with a daemon of its own that paces its jobs, as on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, NoDaemonError

_START_S = 15.0
_END_S = 10.0


@dataclass(frozen=True)
class Pacing:
    """How a daemon is to pace: the rate law, its control interval, F, and constants other than the defaults.

    With `by_socket`, no daemon does: the ranks pace their own connections.
    """

    law: str
    interval_s: float
    aggressiveness: Aggressiveness
    constants: tuple[tuple[str, float], ...] = ()
    by_socket: bool = False


@contextmanager
def paced_host(namespace: str, interface: str, line_rate_bps: int, pacing: Pacing) -> Iterator[Path]:
    """A daemon in a namespace, which paces what leaves by an interface; yields its socket.

    Raises:
        MltcpError: it does not start, or does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="mltcp-host-") as directory:
        place = Path(directory)
        (place / "mltcpd.toml").write_text(_configuration(place, interface, line_rate_bps, pacing))
        with open(place / "log", "w+") as log:
            daemon = namespaces.inside(namespace, lambda: _start(place, log.fileno()))
            try:
                _await_answer(place / "sock", daemon, log.name)
                yield place / "sock"
            finally:
                daemon.send_signal(signal.SIGTERM)
                try:
                    status = daemon.wait(_END_S)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    status = daemon.wait()
            if status != 0:
                raise MltcpError(f"the daemon of {namespace} ended with {status}: {_last_line(log.name)}")


def _configuration(place: Path, interface: str, line_rate_bps: int, pacing: Pacing) -> str:
    law = pacing.aggressiveness
    lines = [
        f'socket = "{place / "sock"}"',
        f'journal = "{place / "journal"}"',
        f'interfaces = ["{interface}"]',
        "controls = []",
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


def _start(place: Path, log: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mltcp.cli", "daemon", "--config", os.fspath(place / "mltcpd.toml")]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _await_answer(path: Path, daemon: subprocess.Popen[bytes], log: str) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if daemon.poll() is not None:
            raise MltcpError(f"the daemon does not start: {_last_line(log)}")
        try:
            with Client(path) as client:
                client.status()
            return
        except NoDaemonError:
            time.sleep(0.02)
    raise MltcpError(f"the daemon does not answer within {_START_S:g} s: {_last_line(log)}")


def _last_line(log: str) -> str:
    lines = Path(log).read_text().split("\n")
    return next((line for line in reversed(lines) if line), "it said nothing")
