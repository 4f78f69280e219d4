"""Runs the published simulator's rules on a trace, and gives the result in its milliseconds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import UsageError
from placement.model.cluster import GPU_MEMORY_MB
from placement.model.compiled import compiled
from placement.model.job import Job
from placement.simulator.outcome import JobOutcome, Outcome
from placement.simulator.published.iterations import (
    catch_up,
    communicate,
    end_local,
    end_task,
    end_transfers,
    ready,
    start_tasks,
)
from placement.simulator.published.placing import arrive, leave, place
from placement.simulator.published.state import (
    MS_PER_MB,
    NEVER,
    PublishedRules,
    PublishedState,
    initial_state,
    rules_of,
)

# -- results -----------------------------------------------------------------------------------------------------------

Times = NDArray[np.int64]

_MS_PER_S = 1000


@dataclass(frozen=True)
class PublishedRun:
    """A run; arrays are per job, in the order of their numbers, unless stated otherwise.

    Each job's `jct_ms` is the sum of `queue_ms`, `compute_ms`, `gpu_wait_ms`, `link_wait_ms` and `communication_ms`.

    Attributes:
        job_ids: the jobs' numbers.
        arrival_ms: when they arrived.
        placed_ms: when they got their GPUs.
        ended_ms: when their last iteration was over.
        compute_ms: the compute time of a worker.
        gpu_wait_ms: the time by which passes took longer because workers shared GPUs with other jobs'.
        link_wait_ms: while they had computed, and their transfers were not started.
        communication_ms: while their transfers ran.
        alone_ms: the time that transfers take alone, in whole steps; with the defect, it can be more.
        transfers: the number of transfers.
        gpus: the numbers of their GPUs.
        active_ms: per GPU, while it computed.
        total_ms: the number of steps, which are counted until the one after the last job's end.
        events: arrivals, and ends of passes and of transfers.
        wall_s: the wall-clock time of the run.
    """

    job_ids: tuple[int, ...] = field(repr=False)
    arrival_ms: Times = field(repr=False)
    placed_ms: Times = field(repr=False)
    ended_ms: Times = field(repr=False)
    compute_ms: Times = field(repr=False)
    gpu_wait_ms: Times = field(repr=False)
    link_wait_ms: Times = field(repr=False)
    communication_ms: Times = field(repr=False)
    alone_ms: Times = field(repr=False)
    transfers: Times = field(repr=False)
    gpus: tuple[tuple[int, ...], ...] = field(repr=False)
    active_ms: Times = field(repr=False)
    total_ms: int
    events: int
    wall_s: float

    @property
    def jct_ms(self) -> Times:
        """The job completion times."""
        return self.ended_ms - self.arrival_ms

    @property
    def queue_ms(self) -> Times:
        """The time of each job from arrival to placement."""
        return self.placed_ms - self.arrival_ms

    @property
    def contention_ms(self) -> Times:
        """The time by which transfers took longer than alone; negative values are due to the defect."""
        return self.communication_ms - self.alone_ms

    @property
    def average_gpu_utilization(self) -> float:
        """The mean utilization of all GPUs over all steps."""
        return float(self.active_ms.mean() / self.total_ms)

    def outcome(self) -> Outcome:
        """Convert to an outcome, in seconds."""
        return Outcome(
            jobs=tuple(self._job_outcome(job) for job in range(len(self.job_ids))),
            makespan_s=self.total_ms / _MS_PER_S,
            gpu_utilization=tuple((self.active_ms / self.total_ms).tolist()),
            events=self.events,
            wall_s=self.wall_s,
        )

    def _job_outcome(self, job: int) -> JobOutcome:
        return JobOutcome(
            job_id=self.job_ids[job],
            arrival_s=float(self.arrival_ms[job] / _MS_PER_S),
            start_s=float(self.placed_ms[job] / _MS_PER_S),
            end_s=float(self.ended_ms[job] / _MS_PER_S),
            queue_s=float(self.queue_ms[job] / _MS_PER_S),
            compute_s=float(self.compute_ms[job] / _MS_PER_S),
            gpu_wait_s=float(self.gpu_wait_ms[job] / _MS_PER_S),
            link_wait_s=float(self.link_wait_ms[job] / _MS_PER_S),
            communication_s=float(self.communication_ms[job] / _MS_PER_S),
            contention_s=float(self.contention_ms[job] / _MS_PER_S),
            gpus=self.gpus[job],
        )


def result_of(jobs: Sequence[Job], state: PublishedState, total_ms: int, wall_s: float) -> PublishedRun:
    """Read the result off a final state; the jobs are in the state's order."""
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].job_id)
    records = state.jobs[order]
    return PublishedRun(
        job_ids=tuple(jobs[number].job_id for number in order),
        arrival_ms=records["arrival"],
        placed_ms=records["placed"],
        ended_ms=records["ended"],
        compute_ms=records["service"] // records["workers"],
        gpu_wait_ms=records["gpu_wait"],
        link_wait_ms=records["link_wait"],
        communication_ms=records["communication"],
        alone_ms=records["transfers"] * np.array([math.ceil(size * MS_PER_MB) for size in records["size"]]),
        transfers=records["transfers"],
        gpus=tuple(tuple(state.workers[number, : jobs[number].gpus].tolist()) for number in order),
        active_ms=state.active,
        total_ms=total_ms,
        events=int(state.clock[0]["events"]),
        wall_s=wall_s,
    )


# -- the steps, without those in which nothing can happen --------------------------------------------------------------

_NEVER = int(NEVER)


@compiled
def _step(state: PublishedState) -> bool:
    """One millisecond of the published simulator, in its order; returns whether the next can differ."""
    clock = state.clock[0]
    _end(state)
    if clock.finished > 0:
        leave(state)
    arrive(state)
    place(state)
    if clock.local > 0:
        end_local(state)
    if clock.ask:
        communicate(state)
    if clock.woken > 0:
        start_tasks(state)
    return clock.retry or clock.ask or clock.finished > 0


@compiled
def _end(state: PublishedState) -> None:
    """End tasks and transfers server by server, because the order affects the rounding of workloads."""
    clock, gpus = state.clock[0], state.rules[0].gpus
    due = clock.due <= clock.now
    if due:
        catch_up(state)
        clock.ask = True
    for server in state.order:
        for gpu in range(server * gpus, (server + 1) * gpus):
            if state.ends[gpu] == clock.now and end_task(state, gpu):
                ready(state, state.task[gpu])
        if due and state.load[server] > 0:
            end_transfers(state, server)


@compiled
def _next(state: PublishedState) -> int:
    """The next step in which something ends or arrives."""
    clock = state.clock[0]
    following = clock.due
    if clock.arrived < len(state.jobs):
        following = min(following, state.jobs[clock.arrived].arrival)
    for end in state.ends:
        following = min(following, end)
    return following


@compiled
def run_to_end(state: PublishedState, every: bool) -> int:
    """Run a state to its end; returns the number of steps. `every` skips none, which changes no result."""
    clock = state.clock[0]
    while True:
        again = _step(state)
        if clock.left == len(state.jobs):
            return clock.now + 1
        clock.now = clock.now + 1 if again or every else _next(state)


# -- a run -------------------------------------------------------------------------------------------------------------


def run(
    jobs: Sequence[Job],
    placement: str,
    kappa: int,
    communication: str,
    *,
    defect: bool,
    seed: int = 0,
    servers: int = 16,
    gpus: int = 4,
    memory_mb: int = GPU_MEMORY_MB,
) -> PublishedRun:
    """Run the jobs by the published simulator's rules.

    Args:
        jobs: of the trace, in any order.
        placement: random, first-fit, list-scheduling or lwf.
        kappa: of lwf: jobs with more workers are kept together on servers.
        communication: ada-srsf, or srsf-N with the number of transfers that a server may have.
        defect: whether AdaDUAL's queries advance the queried transfers, as published.
        seed: of the random placement, which draws what Python's generator of this seed gives.
        servers: around one switch.
        gpus: of a server.
        memory_mb: of a GPU.

    Raises:
        UsageError: no jobs, an unknown policy, a job that can never run, or times that are not whole milliseconds.
    """
    rule, kappa, most = rules_of(placement, kappa, communication)
    rules = PublishedRules(rule, kappa, most, defect, servers, gpus, memory_mb)
    if not jobs:
        raise UsageError("jobs: expected one or more, got no jobs")
    rules.check_jobs(jobs)
    ordered = sorted(jobs, key=lambda job: (job.arrival_ns, job.job_id))
    state = initial_state(ordered, rules, seed)
    began = time.perf_counter()
    total_ms = run_to_end(state, False)
    return result_of(ordered, state, total_ms, time.perf_counter() - began)
