"""The training of `bench.workloads.elastic.training_job` on an engine: started, stopped, killed, and moved."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bench.workloads.elastic import training_job
from bench.workloads.elastic.training_job import LOSSES, JobOptions, SampleCounts, read_progress
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory
from collectives.elastic.journal import read_journal
from mltcp.core import processes
from mltcp.core.errors import MltcpError
from placement.engines.engine import (
    EngineError,
    EngineJob,
    HostBack,
    HostOut,
    HostShare,
    HostUsed,
    JobEvent,
    JobHandle,
    JobsHeld,
    JobStarted,
)
from placement.engines.local import LocalEngine

_POLL_S = 0.01
_LONGEST_S = 300.0
_TORCHRUN = b"torch.distributed.run"
_WRAPPER = b"placement.engines.rank"

Event = dict[str, Any]
"""A line of the job's journal."""


class EngineEvents:
    """The events of an engine, kept apart by job, so that each job's may be waited for."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self._kept: dict[str, list[JobEvent]] = {}

    def of(self, job_id: str, timeout_s: float) -> list[JobEvent]:
        """The events of a job since the last call; waits up to `timeout_s` for events of any job if it has none."""
        if not self._kept.get(job_id):
            self.collect(timeout_s)
        return self._kept.pop(job_id, [])

    def collect(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for events of any job, and keep them."""
        for event in self.engine.poll(timeout_s):
            if not isinstance(event, HostOut | HostBack | HostUsed | JobsHeld):
                self._kept.setdefault(event.job_id, []).append(event)


class EngineTraining:
    """One training on a local engine, over all of its runs.

    Args:
        events: of the engine that runs the job.
        name: of the job.
        options: of the training, with a directory of its own.
        environment: further variables of the ranks.
    """

    def __init__(
        self,
        events: EngineEvents,
        name: str,
        options: JobOptions,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._events, self._engine = events, events.engine
        self._name, self.options = name, options
        self._environment = environment or {}
        self._handle: JobHandle | None = None
        self._seen = 0

    def start(self, placement: Sequence[HostShare]) -> None:
        """Start a run on these slots. Raises EngineError if it cannot."""
        self._seen = len(read_journal(self.options.directory))
        command = (sys.executable, "-m", training_job.__name__, *self.options.arguments())
        ranks = sum(len(share.slots) for share in placement)
        job = EngineJob(self._name, command, ranks, self._environment)
        self._handle = self._engine.start(job, placement)

    def events(self) -> list[Event]:
        """The journal since the last start."""
        return read_journal(self.options.directory)[self._seen :]

    def await_steps(self, steps: int) -> None:
        """Wait until the run has done its first step, and some further ones. Raises MltcpError if it ends before."""
        lines: int | None = None
        end_s = time.monotonic() + _LONGEST_S
        while lines is None or self._steps() < lines + steps:
            if lines is None and any(event["event"] == "first_step" for event in self.events()):
                lines = self._steps()
            self._check_running(end_s)

    def stop(self, grace_s: float) -> JobEvent:
        """Ask the run to stop, and wait for its end."""
        self.ask_to_stop(grace_s)
        return self.end()

    def ask_to_stop(self, grace_s: float) -> None:
        """Ask the run to stop; its end follows as an event, also if it has just ended by itself."""
        with suppress(EngineError):
            self._engine.stop(self._name, grace_s)

    def samples_done(self) -> int:
        """The samples that the training has done, over all of its runs; 0 before the first step."""
        return read_progress(self.options.directory)

    def kill_rank(self, number: int) -> JobEvent:
        """Kill a rank (modulo their number), and wait for the end of the run."""
        return self._kill([pid for pid, command in self._processes() if _is_rank(command)], number)

    def kill_agent(self, number: int) -> JobEvent:
        """Kill the torchrun of a host (modulo their number), and wait for the end of the run."""
        found = [pid for pid, command in self._processes() if _TORCHRUN in command and _WRAPPER in command]
        return self._kill(found, number)

    def end(self) -> JobEvent:
        """Wait for the end of the run."""
        end_s = time.monotonic() + _LONGEST_S
        while time.monotonic() < end_s:
            for event in self._events.of(self._name, 1.0):
                if not isinstance(event, JobStarted):
                    return event
        raise MltcpError(f"job {self._name}: expected its end within {_LONGEST_S:g} s, got none")

    def faults(self) -> list[str]:
        """The faults of the samples in the newest checkpoint, by the counts in it; empty if there are none."""
        found = CheckpointDirectory(self.options.directory).newest()
        if found is None:
            return []
        path, header = found
        counts = SampleCounts(self.options.samples, self.options.epochs)
        counts.load_state_dict(torch.load(path / "state.pt", weights_only=True)["counts"])
        faults = counts.faults(header.samples_done)
        ends = [0, *(segment.end for segment in header.segments)]
        if [segment.begin for segment in header.segments] != ends[:-1] or ends[-1] != header.samples_done:
            faults.append(f"segments: expected to lie end to end up to {header.samples_done}, got {ends}")
        return faults

    def _steps(self) -> int:
        try:
            return (self.options.directory / LOSSES).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def _check_running(self, end_s: float) -> None:
        for event in self._events.of(self._name, _POLL_S):
            if not isinstance(event, JobStarted):
                raise MltcpError(f"job {self._name}: expected more steps, got {event}")
        if time.monotonic() > end_s:
            raise MltcpError(f"job {self._name}: expected a step within {_LONGEST_S:g} s, got none")

    def _kill(self, pids: list[int], number: int) -> JobEvent:
        os.kill(pids[number % len(pids)], signal.SIGKILL)
        return self.end()

    def _processes(self) -> list[tuple[int, bytes]]:
        assert self._handle is not None
        launchers = [pid for pid, _ in json.loads(self._handle.reference)["processes"]]
        found = [pid for launcher in launchers for pid in processes.descendants(launcher)]
        return [(pid, _command(pid)) for pid in found]


def _is_rank(command: bytes) -> bool:
    return training_job.__name__.encode() in command and _WRAPPER not in command and _TORCHRUN not in command


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
