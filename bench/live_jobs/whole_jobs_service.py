"""Whole jobs with deadlines under a real placement service, which is told their speeds, on a local engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.live_jobs.contention_service import running
from bench.live_jobs.elastic_executor import GRACE_S, options_of
from bench.workloads.elastic import training_job
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError
from mltcp.core.quantities import NS_PER_S
from placement.client.client import Client
from placement.engines.local import LocalEngine
from placement.model.job_speed import RingSpeed
from placement.model.throughput import Workload
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.speeds import speed_message
from placement.service.server import ServiceConfiguration
from placement.simulator.rates.outcome import Span
from placement.traces.deadlines import DeadlineJob, DeadlineTrace

_POLL_S = 0.1
_LEAD_NS = NS_PER_S
_REPORTING = {"MLTCP_CC": "none", "MLTCP_DAEMON": "none"}
_PLACED = (pb.PLACED, pb.STOPPING)


def run_jobs_on_service(
    trace: DeadlineTrace,
    speed: Callable[[Workload], RingSpeed],
    policy: str,
    restart_ns: int,
    servers: Sequence[pb.Server],
    engine: LocalEngine,
    directory: Path,
    on_end: Callable[[str], None],
) -> tuple[tuple[Span, ...], tuple[str, ...], int]:
    """Submit the jobs of a trace when they arrive, and wait for their ends.

    Args:
        trace: on the lab's clock.
        speed: that is submitted with a job, by its training.
        policy: of the service.
        restart_ns: what it is told that a start costs.
        servers: with CPU slots, in the order of the cluster's nodes.
        engine: whose hosts these are.
        directory: for the service and the jobs' checkpoints.
        on_end: called with the name of each job that ends.

    Returns:
        The spans of all jobs, what the service said of those that were not as predicted, and the moment 0 of the spans
        on CLOCK_MONOTONIC.

    Raises:
        MltcpError: a job failed, or the service did.
    """
    state = directory / "service"
    rules = ServiceRules(policy, grace_s=GRACE_S, restart_cost_s=restart_ns / NS_PER_S)
    configuration = ServiceConfiguration(
        Address(path=state / "s"), state / "state.db", rules, servers=tuple(servers), engine=engine
    )
    with running(configuration) as bound, Client(bound) as client:
        begin_ns = client.clock_ns() + _LEAD_NS
        epoch_ns = time.monotonic_ns() + _LEAD_NS
        watch = _SpanWatch(
            client, [server.name for server in servers], servers[0].cpu_slots, begin_ns, on_end
        )
        for job in trace.jobs:
            watch.until(begin_ns + job.arrival_ns)
            client.submit(_message(job, speed(job.workload), directory / "jobs" / job.name, begin_ns))
        while len(watch.ended) < len(trace.jobs):
            watch.until(client.clock_ns() + round(_POLL_S * NS_PER_S))
    return tuple(watch.spans), tuple(watch.unlike.values()), epoch_ns


class _SpanWatch:
    """Polls the states of jobs.

    Attributes:
        spans: of placements that are over.
        ended: the jobs that have ended.
        unlike: of each job, the last that the service said of its speed.
    """

    def __init__(
        self,
        client: Client,
        servers: Sequence[str],
        slots: int,
        begin_ns: int,
        on_end: Callable[[str], None],
    ) -> None:
        self.spans: list[Span] = []
        self.ended: set[str] = set()
        self.unlike: dict[str, str] = {}
        self._client, self._begin_ns, self._on_end = client, begin_ns, on_end
        self._first = {server: slots * number for number, server in enumerate(servers)}
        self._open: dict[str, tuple[int, Span]] = {}

    def until(self, at_ns: int) -> None:
        """Poll at least once, and until this time on the service's clock."""
        while True:
            for status in self._client.status(cluster=False).jobs:
                self._note(status)
            left_s = (at_ns - self._client.clock_ns()) / NS_PER_S
            if left_s <= 0:
                return
            time.sleep(min(left_s, _POLL_S))

    def _note(self, status: pb.JobStatus) -> None:
        if status.state == pb.FAILED:
            raise MltcpError(f"job {status.id}: expected that it finishes, got: {status.reason}")
        if status.id in self.ended:
            return
        opened = self._open.get(status.id)
        if opened is not None and (status.state not in _PLACED or opened[0] != status.restarts):
            end_ns = status.ended_ns or status.placed_ns or self._client.clock_ns()
            self.spans.append(replace(opened[1], end_ns=end_ns - self._begin_ns))
            del self._open[status.id]
        if status.state in _PLACED and status.id not in self._open:
            start_ns = status.placed_ns - self._begin_ns
            self._open[status.id] = status.restarts, Span(status.id, self._gpus(status), start_ns, start_ns)
        if "not as predicted" in status.seen:
            self.unlike[status.id] = f"{status.id}: {status.seen}"
        if status.state == pb.ENDED:
            self.ended.add(status.id)
            self._on_end(status.id)

    def _gpus(self, status: pb.JobStatus) -> tuple[int, ...]:
        return tuple(
            sorted(self._first[place.server] + slot for place in status.places for slot in place.slots)
        )


def _message(job: DeadlineJob, speed: RingSpeed, directory: Path, begin_ns: int) -> pb.Job:
    """A job that counts its iterations on one slot; its agent reports."""
    workload = job.workload
    options = replace(options_of(workload, directory), backend="mltcp")
    return pb.Job(
        id=job.name,
        cpu_slots=1,
        iterations=max(1, -(-int(workload.total_samples) // workload.batch)),
        speed=speed_message(speed),
        deadline_ns=begin_ns + job.deadline_ns,
        elastic=True,
        checkpoints=str(directory),
        command=[sys.executable, "-m", training_job.__name__, *options.arguments()],
        environment=_REPORTING,
    )
