"""Pacing by sockets (SO_MAX_PACING_RATE), without privileges.

It runs on a thread of the process that owns the connections, since another process would have to hold them open to set
their rates. Each connection follows the law separately, as a queue pair does in the paper on DCQCN, with its own
bytes_ratio.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker, boundary_number
from mltcp.pacing.controller import PacingController
from mltcp.pacing.rate_law import Constants
from mltcp.pacing.sock_diag import FlowKey, Sample
from mltcp.pacing.tcp_info import inode, max_pacing_rate, set_max_pacing_rate, tcp_info

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
        # Of the connections between all ranks of a group most are idle, and each reading costs its process 10 us.
        self._controller = PacingController(_OwnSockets(), line_rate_bps, mltcp, constants, rest=True)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._former: dict[FlowKey, int] = {}
        self._boundary = 0  # the last one reported, and the last one of which the trackers know
        self._noted = 0

    def add(self, descriptors: Iterable[int]) -> None:
        """Pace these connections, too, while they are open."""
        with self._lock:
            for descriptor in descriptors:
                with suppress(OSError):
                    key = FlowKey(socket.AF_UNSPEC, ("", descriptor), ("", 0), inode(descriptor))
                    self._former.setdefault(key, max_pacing_rate(descriptor))
                    if not _set_rate(key, self._line_rate_bps // 8):
                        continue
                    self._controller.remove_job(descriptor)
                    tracker = IterationTracker()
                    tracker.boundary(self._noted, time.monotonic_ns())
                    self._controller.add_job(descriptor, Aggressiveness(), tracker)
                    self._controller.add_flows(descriptor, [key])
            if self._thread is None and self._controller.jobs:
                self._thread = threading.Thread(target=self._run, name="mltcp-pacing", daemon=True)
                self._thread.start()

    def report(self, iterations: int) -> None:
        """Say that so many iterations have ended, and another one begins; from then on nothing else parts two.

        The steps of a ring of ten ranks look like iterations to each of its connections. It is taken note of after the
        next reading, which is of the iteration before, so that who trains does not wait for that.
        """
        self._boundary = boundary_number(iterations)

    def rates_bps(self) -> dict[int, float]:
        """The rate of every connection, by descriptor."""
        with self._lock:
            return {each: share * self._line_rate_bps for each, share in self._controller.rates().items()}

    def close(self) -> None:
        """Stop pacing; connections that are still open get the limit back that they had, mostly none."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for flow, bytes_per_s in self._former.items():
            _set_rate(flow, bytes_per_s)
        self._former.clear()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            with self._lock:
                self._tick()

    def _tick(self) -> None:
        boundary, now_ns = self._boundary, time.monotonic_ns()
        changed, gone = self._controller.tick(now_ns)
        if boundary != self._noted:
            self._noted = boundary
            for each in self._controller.jobs.values():
                each.tracker.boundary(boundary, now_ns)
        for flow in gone:
            self._controller.remove_job(flow.local[1])
            self._former.pop(flow, None)
        for descriptor, share in changed.items():
            job = self._controller.jobs.get(descriptor)
            for flow in () if job is None else job.flows:
                _set_rate(flow, round(share * self._line_rate_bps / 8))


def _set_rate(flow: FlowKey, bytes_per_s: int) -> bool:
    """Limit the rate of a connection; whether it still has its descriptor.

    By a copy of the descriptor, whose socket stays the same one if the connection is closed meanwhile and its
    descriptor reused.
    """
    try:
        copy = os.dup(flow.local[1])
    except OSError:
        return False
    try:
        if inode(copy) != flow.cookie:
            return False
        set_max_pacing_rate(copy, bytes_per_s)
    except OSError:
        return False
    finally:
        os.close(copy)
    return True


def _sample(flow: FlowKey) -> Sample | None:
    descriptor = flow.local[1]
    info = tcp_info(descriptor)
    if info is None:
        return None
    try:
        # After: if the descriptor was reused meanwhile, these are the counters of another socket.
        if inode(descriptor) != flow.cookie:
            return None
    except OSError:
        return None
    return Sample(
        info.acked_bytes or 0,
        info.delivered_segments or 0,
        info.delivered_ce_segments or 0,
        info.retransmits,
        info.unacked_segments,
    )
