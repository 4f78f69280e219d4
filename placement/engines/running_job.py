"""A running job of the local engine: a state machine over the messages of its hosts."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement.engines.engine import EngineEvent, HostShare, JobFailed, JobFinished, JobStarted, JobStopped
from placement.engines.node_process import NodeProcess, NodeProcessExit, exit_text

BLAME_GRACE_S = 1.0
"""How long failures are collected before the job is ended: other ranks fail too, some before the cause is reported.

0.3 s were too few on two cores that were busy with other programs.
"""

ANSWER_S = 10.0
"""How long to wait for a host to end its ranks after the grace period, before its launcher is killed."""


@dataclass(frozen=True)
class _Failure:
    why: str
    host: str
    rank: int | None = None
    killed: bool = False


class RunningJob:
    """A job with one launcher process per host. Not thread-safe.

    Args:
        job_id: the job's id.
        placement: its shares in the order of its ranks.
        nodes: the launcher process of each share.
    """

    def __init__(self, job_id: str, placement: Sequence[HostShare], nodes: Sequence[NodeProcess]) -> None:
        self.job_id = job_id
        self.nodes = tuple(nodes)
        self._hosts = [share.host for share in placement for _ in share.slots]
        self._started = self._exited = 0
        self._waiting = set(nodes)
        self._failures: list[_Failure] = []
        self._end_asked = False
        self._closing = False
        self._kill_at_s = self._abandon_at_s = math.inf

    @property
    def deadline_s(self) -> float:
        """When :meth:`on_time` must be called, by CLOCK_MONOTONIC; infinite: never."""
        return min(self._kill_at_s, self._abandon_at_s)

    @property
    def is_over(self) -> bool:
        """Whether all launcher processes have ended."""
        return not self._waiting

    def hear(self, node: NodeProcess, message: Mapping[str, Any] | NodeProcessExit) -> list[EngineEvent]:
        """Handle a message of a host, and return the events that follow."""
        if isinstance(message, NodeProcessExit):
            self._waiting.discard(node)
            self._note_end_of_process(node, message)
            return [self._end()] if self.is_over else []
        if message["event"] == "started":
            self._started += 1
            return [JobStarted(self.job_id)] if self._started == len(self.nodes) else []
        if message["event"] == "rank":
            self._note_end_of_rank(message)
        else:
            self._note_end_of_node(node, message)
        return []

    def stop(self, grace_s: float) -> None:
        """Stop the job on all hosts, as requested by the engine's user."""
        self._end_asked = True
        self._stop_all(grace_s)

    def close(self) -> None:
        """Stop the job because the engine is being closed."""
        self._closing = True
        self.stop(0.0)

    def on_time(self, now_s: float) -> None:
        """Apply expired deadlines: end the rest of a failed job, and kill launchers that do not answer."""
        if now_s >= self._kill_at_s:
            self._kill_at_s = math.inf
            self._stop_all(0.0)
        if now_s >= self._abandon_at_s:
            self._abandon_at_s = math.inf
            for node in self._waiting:
                node.kill()

    def _stop_all(self, grace_s: float) -> None:
        for node in self._waiting:
            node.stop(grace_s)
        self._abandon_at_s = min(self._abandon_at_s, time.monotonic() + grace_s + ANSWER_S)

    def _note_end_of_rank(self, message: Mapping[str, Any]) -> None:
        status, rank = message["status"], message["rank"]
        self._exited += status == 0
        if status != 0 and not message["signalled"]:
            host = self._hosts[rank]
            detail = f": {message['last_log_line']}" if message["last_log_line"] and status > 0 else ""
            why = f"rank {rank} on host {host} {exit_text(status)}{detail}"
            self._fail(_Failure(why, host, rank, killed=status < 0))

    def _note_end_of_node(self, node: NodeProcess, message: Mapping[str, Any]) -> None:
        node.result = message
        if message["status"] != 0:
            detail = f": {message['last_log_line']}" if message["last_log_line"] else ""
            why = f"host {node.host.name}: torchrun {exit_text(message['status'])}{detail}"
            self._fail(_Failure(why, node.host.name))

    def _note_end_of_process(self, node: NodeProcess, ended: NodeProcessExit) -> None:
        if node.result is None:
            detail = f": {ended.last_log_line}" if ended.last_log_line else ""
            why = f"host {node.host.name}: its launcher {exit_text(ended.status)}{detail}"
            self._fail(_Failure(why, node.host.name, killed=ended.status == -signal.SIGKILL))

    def _fail(self, failure: _Failure) -> None:
        if self._end_asked:
            return
        if not self._failures:
            self._kill_at_s = time.monotonic() + BLAME_GRACE_S
        self._failures.append(failure)

    def _end(self) -> EngineEvent:
        if self._failures:
            first = self._blamed()
            return JobFailed(self.job_id, first.why, first.rank, first.host)
        if all(node.result is not None and node.result["status"] == 0 for node in self.nodes):
            return JobFinished(self.job_id)
        if self._closing:
            return JobFailed(self.job_id, "the engine was closed", lost=True)
        # torchrun itself exits with status 1 after SIGTERM, whatever its ranks did.
        return JobStopped(self.job_id, orderly=self._exited == len(self._hosts))

    def _blamed(self) -> _Failure:
        """The failure that caused the others: a killed rank or launcher, or else the first rank that failed."""
        return min(self._failures, key=lambda each: (not each.killed, each.rank is None))
