"""The local engine, which enters hosts and runs torchrun on them: on this machine, in a lab, or over ssh."""

from __future__ import annotations

import json
import logging
import math
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from mltcp.core import processes
from placement.engines import leftovers, node
from placement.engines.bounded_log import LOG_BYTES
from placement.engines.engine import (
    EngineEvent,
    EngineJob,
    HostShare,
    JobFailed,
    JobFinished,
    JobHandle,
)
from placement.engines.engine_base import EngineBase, file_name
from placement.engines.hosts import Endpoint, Host, HostNetwork, JobNetwork, Ports, checked_hosts
from placement.engines.launcher import SLOTS, torchrun_options
from placement.engines.node_process import NodeProcess, NodeProcessExit
from placement.engines.running_job import ANSWER_S, RunningJob

_log = logging.getLogger("mltcp.placement")
FENCE_S = 20.0


class LocalEngine(EngineBase[RunningJob]):
    """Runs jobs on hosts that it enters, with one torchrun per host and one rank per slot.

    Each job has a directory for its logs: ``rank-R.log`` of the ranks and ``node-N.log`` of torchrun. When a rank or
    host fails, the whole job is ended. All jobs end when the engine is closed or its process ends.

    Args:
        hosts: the hosts that jobs may run on.
        logs: the directory for the jobs' directories; created if missing.
        network: assigns addresses to jobs; None: jobs use the addresses of the hosts.
        environment: variables of all ranks; those of the job take precedence.
        fence_s: how long ranks run on after their host has lost its connection to the engine. Their slots are free
            again when that time is over.
        log_bytes: the most that the log of a rank may have; its start and its latest part are kept.

    Raises:
        UsageError: two hosts have the same name.
    """

    jobs_survive = False

    def __init__(
        self,
        hosts: Sequence[Host],
        logs: Path,
        *,
        network: JobNetwork | None = None,
        environment: Mapping[str, str] | None = None,
        fence_s: float = FENCE_S,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self._fence_s, self._log_bytes = fence_s, log_bytes
        self.hosts = {host.name: host for host in checked_hosts(hosts)}
        super().__init__({name: host.slots for name, host in self.hosts.items()}, logs)
        self._network = network or HostNetwork(hosts)
        self._environment = dict(environment or {})
        self._ports = Ports.begun_anywhere()
        self._wake_out, self._wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="local-engine", daemon=True)
        self._thread.start()

    def free(self, host: str) -> tuple[int, ...]:
        """The slots of a host that no job holds."""
        with self._lock:
            return self._slots.free(host)

    def logs_of(self, handle: JobHandle) -> Path:
        """The directory of a job's logs."""
        return Path(json.loads(handle.reference)["directory"])

    def start(self, job: EngineJob, placement: Sequence[HostShare]) -> JobHandle:
        """Start a job; see :class:`placement.engines.engine.Engine`."""
        self._reserve(job, placement)
        try:
            directory = self._make_directory(job.id)
            nodes = self._launch(job, placement, directory)
        except BaseException:
            with self._lock:
                self._free(job.id)
            self._wake()
            raise
        with self._lock:
            self._starting.discard(job.id)
            running = self._jobs[job.id] = RunningJob(job.id, placement, nodes, self._fence_s)
            for each in nodes:
                for descriptor in (each.output, each.errors):
                    self._selector.register(descriptor, selectors.EVENT_READ, (running, each))
            if self._closed.is_set():
                running.close()
        self._wake()
        pids = [[each.pid, each.start_ticks] for each in nodes]
        return JobHandle(job.id, json.dumps({"directory": os.fspath(directory), "processes": pids}))

    def stop(self, job_id: str, grace_s: float = 0.0) -> None:
        """Stop a job; see :class:`placement.engines.engine.Engine`."""
        with self._lock:
            self._running(job_id).stop(grace_s)
        self._wake()

    def decline(self, reference: str, why: str) -> None:
        """Does nothing: it holds no jobs."""

    def recover(self, known: Sequence[JobHandle]) -> None:
        """Make sure that the processes of an earlier engine's jobs have ended, and report how they ended.

        The processes end with their engine; those that have not within `ANSWER_S` are killed. A job has finished if all
        of its torchruns exited with status 0, even if no engine was running at that time.
        """
        references = [(handle.job_id, json.loads(handle.reference)) for handle in known]
        deadline_s = time.monotonic() + ANSWER_S
        for _, reference in references:
            for pid, ticks in reference["processes"]:
                _await_end(pid, ticks, deadline_s)
        leftovers.kill_leftovers()
        for job_id, reference in references:
            self._events.put(_outcome(job_id, Path(reference["directory"]), len(reference["processes"])))

    def close(self) -> None:
        """End all jobs, and wait for their end, which is reported as a failure."""
        with self._lock:
            first = not self._closed.is_set()
            self._closed.set()
            for job in self._jobs.values() if first else ():
                job.close()
        if first:
            self._wake()
        self._thread.join()
        if first:
            self._selector.close()
            os.close(self._wake_out)
            os.close(self._wake_in)

    def _free(self, job_id: str) -> None:
        super()._free(job_id)
        self._ports.release(job_id)

    def _make_directory(self, job_id: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        for turn in count(1):
            with suppress(FileExistsError):
                directory = self._logs / f"{file_name(job_id)}-{turn}"
                directory.mkdir()
                return directory
        raise AssertionError("there is always a next number")

    def _launch(self, job: EngineJob, placement: Sequence[HostShare], directory: Path) -> list[NodeProcess]:
        ranks = [share.host for share in placement for _ in share.slots]
        endpoints = self._network.attach(job.id, ranks)
        nodes: list[NodeProcess] = []
        try:
            with self._lock:
                port = self._ports.take(job.id)
            for number, share in enumerate(placement):
                endpoint = endpoints[ranks.index(share.host)]
                meeting = (endpoints[0].address, port)
                instruction = self._instruction(job, placement, number, endpoint, meeting, directory)
                complaints = directory / f"launcher-{number}.log"
                nodes.append(NodeProcess(self.hosts[share.host], instruction, complaints))
        except BaseException:
            for each in nodes:
                each.end()
            self._network.detach(job.id)
            raise
        return nodes

    def _instruction(
        self,
        job: EngineJob,
        placement: Sequence[HostShare],
        number: int,
        endpoint: Endpoint,
        meeting: tuple[str, int],
        directory: Path,
    ) -> dict[str, Any]:
        """The instruction for the ``number``-th host of a job; see :mod:`placement.engines.node`."""
        share = placement[number]
        host = self.hosts[share.host]
        options = torchrun_options(len(placement), number, len(share.slots), *meeting)
        return {
            "node": number,
            "fence_s": self._fence_s,
            "directory": os.fspath(directory),
            "cgroup": endpoint.cgroup,
            "ranks": [sum(len(each.slots) for each in placement[:number]), len(share.slots)],
            "options": {**options, "local-addr": endpoint.address},
            "command": job.command,
            "log_bytes": self._log_bytes,
            "environment": {
                "GLOO_SOCKET_IFNAME": endpoint.interface,
                "NCCL_SOCKET_IFNAME": f"={endpoint.interface}",
                "MLTCP_JOB": job.id,
                **self._environment,
                **endpoint.environment,
                **job.environment,
                # Last, so that a job cannot override them and use slots of others.
                "CUDA_VISIBLE_DEVICES": ",".join(host.gpus[slot] for slot in share.slots if host.gpus),
                SLOTS: ",".join(map(str, share.slots)),
            },
        }

    def _wake(self) -> None:
        # A full pipe is readable too.
        with suppress(BlockingIOError):
            os.write(self._wake_in, b"x")

    def _watch(self) -> None:
        while True:
            with self._lock:
                if self._closed.is_set() and not self._jobs and not self._starting:
                    return
                jobs = list(self._jobs.values())
                deadline_s = min((job.deadline_s for job in jobs), default=math.inf)
                for job in jobs:
                    self._await_room(job)
            timeout_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
            ready = self._selector.select(timeout_s)
            with suppress(BlockingIOError):
                os.read(self._wake_out, 4096)
            for key, _ in ready:
                if key.data is not None:
                    job, each = key.data
                    self._turn(job, partial(self._hear, job, each, key.fd))
            with self._lock:
                jobs = list(self._jobs.values())
            for job in jobs:
                self._turn(job, partial(self._on_time, job))

    def _turn(self, job: RunningJob, act: Callable[[], Sequence[EngineEvent]]) -> None:
        """Do something for a job, and queue the events that follow; an error ends the job, and no other one."""
        if job.is_over:
            return
        try:
            events = act()
        except Exception as error:
            _log.exception("job %s: ended, as it cannot be followed", job.job_id)
            with self._lock:
                for each in job.nodes:
                    for descriptor in (each.input, each.output, each.errors):
                        self._forget(descriptor, each)
                events = job.break_off(f"the engine failed to follow it: {type(error).__name__}: {error}")
        self._tell(job, events)

    def _hear(self, job: RunningJob, each: NodeProcess, descriptor: int) -> Sequence[EngineEvent]:
        events: list[EngineEvent] = []
        with self._lock:
            if each.has_ended:
                return []
            if descriptor == each.input:
                each.send()
            elif descriptor == each.errors:
                if not each.keep_errors():
                    self._forget(descriptor, each)
            else:
                for heard in each.events():
                    if isinstance(heard, NodeProcessExit):
                        for closed in (each.input, each.output, each.errors):
                            self._forget(closed, each)
                    events += job.hear(each, heard)
        return events

    def _on_time(self, job: RunningJob) -> Sequence[EngineEvent]:
        with self._lock:
            return job.on_time(time.monotonic())

    def _await_room(self, job: RunningJob) -> None:
        """Look for room in the pipes of launchers that have not taken all that was written to them."""
        for each in job.nodes:
            if each.waits_to_send == (each.input in self._selector.get_map()):
                continue
            if each.waits_to_send:
                self._selector.register(each.input, selectors.EVENT_WRITE, (job, each))
            else:
                self._forget(each.input, each)

    def _forget(self, descriptor: int, each: NodeProcess) -> None:
        """Watch a descriptor of a launcher no more; it may be closed, and its number be another launcher's."""
        key = self._selector.get_map().get(descriptor)
        if key is not None and key.data is not None and key.data[1] is each:
            self._selector.unregister(descriptor)

    def _tell(self, job: RunningJob, events: Sequence[EngineEvent]) -> None:
        """Queue events of a job, which holds nothing any more if it is over."""
        if job.is_over:
            # Before the event is queued, so that its receiver finds the network and the slots free.
            self._detach(job.job_id)
            with self._lock:
                self._free(job.job_id)
        for event in events:
            self._events.put(event)

    def _detach(self, job_id: str) -> None:
        # An error of the network must not end the thread that watches the other jobs.
        try:
            self._network.detach(job_id)
        except Exception:
            _log.exception("job %s: its network was not released", job_id)


def _await_end(pid: int, ticks: int | None, deadline_s: float) -> None:
    """Wait until a process has ended, and kill it at the deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The pid may have been reused by another process, which the start time tells; the descriptor is stable.
        if ticks is None or processes.start_ticks(pid) != ticks:
            return
        if not select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], ANSWER_S)
    finally:
        os.close(descriptor)


def _outcome(job_id: str, directory: Path, nodes: int) -> EngineEvent:
    if all(_torchrun_status(directory / node.result_name(each)) == 0 for each in range(nodes)):
        return JobFinished(job_id)
    return JobFailed(job_id, "the engine that ran it is gone", lost=True)


def _torchrun_status(result: Path) -> object:
    """The status in a launcher's result; None if there is none, or not what a launcher writes."""
    try:
        return json.loads(result.read_bytes())["status"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
