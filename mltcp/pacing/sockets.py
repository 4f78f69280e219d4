"""Pacing by sockets (SO_MAX_PACING_RATE), without privileges.

It runs on a thread of the process that owns the connections, since another process would have to hold them open to set
their rates. Each connection follows the law separately, as a queue pair does in the paper on DCQCN, with its own
bytes_ratio.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker
from mltcp.pacing.controller import PacingController
from mltcp.pacing.rate_law import Constants
from mltcp.pacing.sock_diag import FlowKey, Sample
from mltcp.pacing.tcp_info import inode, set_max_pacing_rate, tcp_info

INTERVAL_S = 0.002


class _OwnSockets:
    """Samples of this process's connections, which are identified by descriptor and inode."""

    def sample(self, flows: list[FlowKey]) -> list[Sample | None]:
        return [_sample(flow) for flow in flows]

    def forget(self, flow: FlowKey) -> None:
        """Nothing is cached."""


class SocketPacer:
    """Paces connections of this process until it is closed.

    Args:
        line_rate_bps: of the network: the first and the highest rate of a connection.
        mltcp: whether F acts; without it this is plain DCQCN.
        interval_s: of control.
    """

    def __init__(self, line_rate_bps: int, mltcp: bool = True, interval_s: float = INTERVAL_S) -> None:
        self._line_rate_bps = line_rate_bps
        self._interval_s = interval_s
        constants = Constants(timer=interval_s, alpha_timer=interval_s)
        self._controller = PacingController(_OwnSockets(), line_rate_bps, mltcp, constants)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, descriptors: Iterable[int]) -> None:
        """Pace these connections, too, while they are open."""
        with self._lock:
            for descriptor in descriptors:
                with suppress(OSError):
                    key = FlowKey(socket.AF_UNSPEC, ("", descriptor), ("", 0), inode(descriptor))
                    set_max_pacing_rate(descriptor, self._line_rate_bps // 8)
                    self._controller.add_job(descriptor, Aggressiveness(), IterationTracker())
                    self._controller.add_flows(descriptor, [key])
            if self._thread is None and self._controller.jobs:
                self._thread = threading.Thread(target=self._run, name="mltcp-pacing", daemon=True)
                self._thread.start()

    def rates_bps(self) -> dict[int, float]:
        """The rate of every connection, by descriptor."""
        with self._lock:
            return {each: share * self._line_rate_bps for each, share in self._controller.rates().items()}

    def close(self) -> None:
        """Stop pacing; connections that are still open get the line rate."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for descriptor, job in self._controller.jobs.items():
            if any(_sample(flow) for flow in job.flows):
                with suppress(OSError):
                    set_max_pacing_rate(descriptor, self._line_rate_bps // 8)

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            with self._lock:
                self._tick()

    def _tick(self) -> None:
        changed, gone = self._controller.tick(time.monotonic_ns())
        for flow in gone:
            self._controller.remove_job(flow.local[1])
        for descriptor, share in changed.items():
            job = self._controller.jobs.get(descriptor)
            # The connection may have been closed and its descriptor reused; nothing is set then.
            if job is not None and any(_sample(flow) for flow in job.flows):
                with suppress(OSError):
                    set_max_pacing_rate(descriptor, round(share * self._line_rate_bps / 8))


def _sample(flow: FlowKey) -> Sample | None:
    descriptor = flow.local[1]
    try:
        if inode(descriptor) != flow.cookie:
            return None
    except OSError:
        return None
    info = tcp_info(descriptor)
    if info is None:
        return None
    return Sample(
        info.acked_bytes or 0, info.delivered_segments or 0, info.delivered_ce_segments or 0, info.retransmits
    )
