"""A host of the lab with a daemon of its own that paces the host's jobs, as on a real host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab.daemon_process import running_daemon
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError


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
