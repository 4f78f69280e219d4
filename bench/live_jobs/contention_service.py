"""A trace of jobs under a real placement service, which decides in rounds, on a local engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lab.two_tier import TwoTier, rack_name, server_name
from bench.live_jobs.contention_table import BATCH, command_of, options_of
from bench.workloads.elastic.training_job import FAULTS
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError
from mltcp.core.quantities import NS_PER_S
from placement.client.client import Client
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.server import ServiceConfiguration, running_service
from placement.traces.contention import ContentionJob, ContentionTrace

_POLL_S = 0.1
_READY_S = 300.0


@dataclass(frozen=True)
class JobStart:
    """A start of a job.

    Attributes:
        job: its name.
        run: the number of its earlier starts.
        servers: on which it has slots, ascending.
        round: in which it was started, since the beginning of the trace.
    """

    job: str
    run: int
    servers: tuple[str, ...]
    round: int


@dataclass(frozen=True)
class ServiceRun:
    """The record of a run.

    Attributes:
        starts: in their order.
        end_s: of each job, when it ended after the beginning of the trace.
        stops: the times that jobs were stopped to go on later.
        faults: samples that were lost or seen twice, for people; empty if there are none.
        decisions: the service's counts.
    """

    starts: tuple[JobStart, ...]
    end_s: dict[str, float]
    stops: int
    faults: tuple[str, ...]
    decisions: dict[str, Any]


def service_servers(shape: TwoTier) -> tuple[pb.Server, ...]:
    """The servers of the lab for the service."""
    return tuple(
        pb.Server(
            name=server_name(rack, 0),
            cpu_slots=shape.slots,
            nic_bps=shape.nic.rate_bps,
            switch=rack_name(rack),
        )
        for rack in range(shape.racks)
    )


def run_on_service(
    trace: ContentionTrace,
    rules: ServiceRules,
    servers: tuple[pb.Server, ...],
    engine: LocalEngine,
    directory: Path,
    on_end: Callable[[str], None],
) -> ServiceRun:
    """Submit the jobs of a trace when they arrive, and wait for their ends.

    The trace begins at the beginning of a round.

    Raises:
        MltcpError: a job failed, or the service did.
    """
    from placement.service.protocol.documents import document

    address = Address(path=directory / "service" / "s")
    configuration = ServiceConfiguration(
        address, directory / "service" / "state.db", rules, servers=servers, engine=engine
    )
    round_ns = round(rules.round_s * NS_PER_S)
    with running(configuration) as bound, Client(bound) as client:
        begin_ns = (client.clock_ns() // round_ns + 1) * round_ns
        watch = _JobWatch(client, begin_ns, round_ns, on_end)
        for job in trace.jobs:
            # A job that arrives with the round's beginning takes part in its decision.
            watch.until(begin_ns + job.arrival_ns - round_ns // 10)
            client.submit(_message(job, directory))
        while len(watch.end_s) < len(trace.jobs):
            watch.until(client.clock_ns() + round(_POLL_S * NS_PER_S))
        decisions = document(client.status(cluster=False).decisions)
        stops = sum(status.restarts for status in client.status(cluster=False).jobs)
    faults = tuple(fault for job in trace.jobs for fault in _faults(job.name, directory))
    return ServiceRun(tuple(watch.starts), watch.end_s, stops, faults, decisions)


class _JobWatch:
    """Polls the states of jobs.

    Attributes:
        starts: that were seen.
        end_s: of the jobs that have ended.
    """

    def __init__(self, client: Client, begin_ns: int, round_ns: int, on_end: Callable[[str], None]) -> None:
        self.starts: list[JobStart] = []
        self.end_s: dict[str, float] = {}
        self._client, self._begin_ns, self._round_ns, self._on_end = client, begin_ns, round_ns, on_end
        self._seen: set[tuple[str, int]] = set()

    def until(self, at_ns: int) -> None:
        """Poll at least once, and until this time on the service's clock."""
        while True:
            statuses = self._client.status(cluster=False).jobs
            for status in sorted(statuses, key=lambda each: each.placed_ns):
                self._note(status)
            left_s = (at_ns - self._client.clock_ns()) / NS_PER_S
            if left_s <= 0:
                return
            time.sleep(min(left_s, _POLL_S))

    def _note(self, status: pb.JobStatus) -> None:
        key = status.id, status.restarts
        if status.state == pb.PLACED and key not in self._seen:
            self._seen.add(key)
            servers = tuple(sorted(place.server for place in status.places))
            number = (status.placed_ns - self._begin_ns) // self._round_ns
            self.starts.append(JobStart(status.id, status.restarts, servers, number))
        if status.state == pb.FAILED:
            raise MltcpError(f"job {status.id}: expected that it finishes, got: {status.reason}")
        if status.state == pb.ENDED and status.id not in self.end_s:
            self.end_s[status.id] = (status.ended_ns - self._begin_ns) / NS_PER_S
            self._on_end(status.id)


def _message(job: ContentionJob, directory: Path) -> pb.Job:
    samples = round(job.samples)
    options = options_of(job.model, samples, directory / "jobs" / job.name)
    return pb.Job(
        id=job.name,
        cpu_slots=job.gpus,
        iterations=max(1, -(-samples // (BATCH * job.gpus))),
        model=job.model,
        iteration_samples=BATCH * job.gpus,
        elastic=True,
        command=command_of(options),
    )


def _faults(job: str, directory: Path) -> list[str]:
    try:
        found: list[str] = json.loads((directory / "jobs" / job / FAULTS).read_text())
    except (OSError, ValueError) as error:
        return [f"{job}: no count of its samples: {error}"]
    return [f"{job}: {fault}" for fault in found]


@contextmanager
def running(configuration: ServiceConfiguration) -> Iterator[str]:
    """Run a service on a thread within the context, and yield its address."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def live() -> None:
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[None] = loop.create_future()
        found["stop"] = lambda: loop.call_soon_threadsafe(_finish, stopped)
        try:
            async with running_service(configuration, stopped) as address:
                found["address"] = str(address)
                ready.set()
                await stopped
        except Exception as error:
            found["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    try:
        if not ready.wait(_READY_S) or "address" not in found:
            raise MltcpError(f"the placement service did not start: {found.get('error')}")
        yield found["address"]
    finally:
        if "stop" in found and "error" not in found:
            found["stop"]()
        thread.join()
    if "error" in found:
        raise MltcpError(f"the placement service failed: {found['error']}")


def _finish(stopped: asyncio.Future[None]) -> None:
    if not stopped.done():
        stopped.set_result(None)
