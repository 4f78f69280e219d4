"""A running job of the local engine: a state machine over the messages of its hosts."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from placement.engines.engine import EngineEvent, HostShare, JobFailed, JobFinished, JobStarted, JobStopped
from placement.engines.node_messages import HostMessageError, NodeEnded, NodeStarted, RankEnded
from placement.engines.node_process import NodeEvent, NodeProcess, NodeProcessExit, exit_text

BLAME_GRACE_S = 1.0
"""How long failures are collected before the job is ended: other ranks fail too, some before the cause is reported.

0.3 s were too few on two cores that were busy with other programs.
"""

_BEATS = 6
"""How often launchers are told within the time of the fence that the engine is there."""

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
        fence_s: how long a launcher that hears nothing lets its ranks run.
    """

    def __init__(
        self, job_id: str, placement: Sequence[HostShare], nodes: Sequence[NodeProcess], fence_s: float
    ) -> None:
        self.job_id = job_id
        self.nodes = tuple(nodes)
        self._hosts = [share.host for share in placement for _ in share.slots]
        self._started = self._exited = 0
        self._waiting = set(nodes)
        self._failures: list[_Failure] = []
        self._end_asked = False
        self._closing = False
        self._kill_at_s = self._abandon_at_s = math.inf
        self._fenced: set[NodeProcess] = set()
        self._given_up: set[NodeProcess] = set()
        self._beat_at_s = time.monotonic() + fence_s / _BEATS
        self._silence_s = fence_s / 2
        self._beat_s = fence_s / _BEATS

    @property
    def deadline_s(self) -> float:
        """When :meth:`on_time` must be called, by CLOCK_MONOTONIC."""
        free_s = min((node.free_s for node in self._fenced), default=math.inf)
        return min(self._kill_at_s, self._abandon_at_s, self._beat_at_s, free_s)

    @property
    def is_over(self) -> bool:
        """Whether all ranks are known to be gone."""
        return not self._waiting and not self._fenced

    def hear(self, node: NodeProcess, heard: NodeEvent) -> list[EngineEvent]:
        """Handle what is heard of a host, and return the events that follow."""
        if isinstance(heard, NodeProcessExit):
            self._waiting.discard(node)
            self._note_end_of_process(node, heard)
            if node.free_s > time.monotonic():
                self._fenced.add(node)
            return [self._end()] if self.is_over else []
        if isinstance(heard, NodeStarted):
            self._started += 1
            return [JobStarted(self.job_id)] if self._started == len(self.nodes) else []
        if isinstance(heard, RankEnded):
            self._note_end_of_rank(heard)
        elif isinstance(heard, NodeEnded):
            self._note_end_of_node(node, heard)
        elif isinstance(heard, HostMessageError):
            self._give_up(node, str(heard))
        return []

    def break_off(self, why: str) -> list[EngineEvent]:
        """End the job without hearing its hosts any more, which cannot be done as it should be.

        Returns the events that follow.
        """
        self._fail(_Failure(why, self.nodes[0].host.name, killed=True))
        for node in self._waiting:
            node.kill()
            node.end()
        self._fenced |= {node for node in self._waiting if node.free_s > time.monotonic()}
        self._waiting.clear()
        return [self._end()] if self.is_over else []

    def stop(self, grace_s: float) -> None:
        """Stop the job on all hosts, as requested by the engine's user."""
        self._end_asked = True
        self._stop_all(grace_s)

    def close(self) -> None:
        """Stop the job because the engine is being closed."""
        self._closing = True
        self.stop(0.0)

    def on_time(self, now_s: float) -> list[EngineEvent]:
        """Apply expired deadlines: end the rest of a failed job, and kill launchers that do not answer.

        Returns the events that follow.
        """
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._beat_s
            self._beat(now_s)
        if now_s >= self._kill_at_s:
            self._kill_at_s = math.inf
            self._stop_all(0.0)
        if now_s >= self._abandon_at_s:
            self._abandon_at_s = math.inf
            for node in self._waiting:
                node.kill()
        free = {node for node in self._fenced if node.free_s <= now_s}
        self._fenced -= free
        return [self._end()] if free and self.is_over else []

    def _beat(self, now_s: float) -> None:
        """Tell all launchers that the engine is there, except those of which nothing is heard."""
        for node in self._waiting:
            if now_s - node.heard_s > self._silence_s:
                why = f"host {node.host.name} has not answered for {self._silence_s:g} s"
                self._fail(_Failure(why, node.host.name, killed=True))
            else:
                node.beat()

    def _stop_all(self, grace_s: float) -> None:
        for node in self._waiting:
            node.stop(grace_s)
        self._abandon_at_s = min(self._abandon_at_s, time.monotonic() + grace_s + ANSWER_S)

    def _give_up(self, node: NodeProcess, why: str) -> None:
        """End a host that sends what no launcher sends; what it sends from now on has no effect but its end."""
        if node not in self._given_up:
            self._given_up.add(node)
            self._fail(_Failure(f"host {node.host.name}: {why}", node.host.name, killed=True))
            node.kill()

    def _note_end_of_rank(self, ended: RankEnded) -> None:
        self._exited += ended.status == 0
        if ended.status != 0 and not ended.signalled:
            host = self._hosts[ended.rank]
            detail = f": {ended.last_log_line}" if ended.last_log_line and ended.status > 0 else ""
            why = f"rank {ended.rank} on host {host} {exit_text(ended.status)}{detail}"
            self._fail(_Failure(why, host, ended.rank, killed=ended.status < 0))

    def _note_end_of_node(self, node: NodeProcess, ended: NodeEnded) -> None:
        if ended.status != 0:
            detail = f": {ended.last_log_line}" if ended.last_log_line else ""
            why = f"host {node.host.name}: torchrun {exit_text(ended.status)}{detail}"
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
        if all(node.result is not None and node.result.status == 0 for node in self.nodes):
            return JobFinished(self.job_id)
        if self._closing:
            return JobFailed(self.job_id, "the engine was closed", lost=True)
        # torchrun itself exits with status 1 after SIGTERM, whatever its ranks did.
        return JobStopped(self.job_id, orderly=self._exited == len(self._hosts))

    def _blamed(self) -> _Failure:
        """The failure that caused the others: a killed rank or launcher, or else the first rank that failed."""
        return min(self._failures, key=lambda each: (not each.killed, each.rank is None))
