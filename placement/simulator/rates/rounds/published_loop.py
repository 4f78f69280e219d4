"""The loop of the paper's public code as it is, faults included, to compare with its published figures.

It differs from the corrected loop in this, all of which can be seen in the public code (gajagajago/deepshare):
running jobs that come after one that ends are skipped in that round, because the list is changed while it is iterated;
a job's ratio falls when a neighbour comes and never rises when it leaves; a job counts as finished when fewer samples
are left than seconds of a round times r; the completion time that it reports is 300 s times the rounds run, without
queueing; `las` takes the job with the most attained time and `srtf` the one with the least share done, from the head of
the queue only, and both stop all jobs after every round. `random` draws one of the eight actions of its learned policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.model.throughput_table import FLOOR, Layout, SensitivityTable
from placement.policies.schedulers.contention.rule import STOP_RATIO
from placement.traces.contention import ContentionTrace

POLICIES = ("las", "srtf", "random", "random-fallback")
"""The policies of the loop: two baselines as they are coded, random actions, and these with the greedy fallback."""

ROUND_S = 300
_NODES, _GPUS = 4, 8
_SETS: tuple[tuple[int, ...], ...] = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 1, 2, 3))
_LAYOUTS = {2: (2,), 4: (4, 2), 8: (4, 2)}
"""The numbers of nodes of each demand, the most first."""


@dataclass
class _PublishedJob:
    model: str
    gpus: int
    samples: float
    done: float = 0.0
    trained_s: int = 0
    nodes: tuple[int, ...] = ()
    ratio: float = 1.0
    starts: int = 0
    sensitivity: float = 0.0
    finish_s: float = 0.0

    @property
    def share(self) -> int:
        """Its GPUs on each of its nodes."""
        return self.gpus // len(self.nodes)

    @property
    def layout(self) -> Layout:
        """Where it runs."""
        return Layout(self.model, self.gpus, len(self.nodes))


@dataclass(frozen=True)
class PublishedOutcome:
    """The outcome of a run of the public loop.

    Attributes:
        finish_s: of each job, the end of its last round, queueing included.
        run_s: of each job, the rounds run times 300 s, which the public code calls JCT.
        rounds_by_gpus: for each number of GPUs from 0 on, the rounds in which so many were given out.
        restarts: starts after a job's first, a job.
        sensitivities: of each job, the mean contention sensitivity 1 / r over the rounds counted for it.
        skipped: progress lost because a list was changed while it was iterated, in rounds of jobs.
    """

    finish_s: tuple[float, ...]
    run_s: tuple[float, ...]
    rounds_by_gpus: tuple[int, ...]
    restarts: float
    sensitivities: tuple[float, ...]
    skipped: int

    @property
    def mean_jct_s(self) -> float:
        """The mean completion time; all jobs arrive at time 0."""
        return fmean(self.finish_s)

    @property
    def p90_jct_s(self) -> float:
        """The 90th percentile of completion times."""
        return float(np.percentile(self.finish_s, 90))

    @property
    def mean_run_s(self) -> float:
        """The mean of what the public code calls JCT."""
        return fmean(self.run_s)

    @property
    def utilization(self) -> float:
        """GPUs given out, mean over rounds."""
        given = sum(gpus * rounds for gpus, rounds in enumerate(self.rounds_by_gpus))
        return given / (_NODES * _GPUS * sum(self.rounds_by_gpus))

    @property
    def makespan_s(self) -> float:
        """The end of the last round."""
        return float(sum(self.rounds_by_gpus) * ROUND_S)

    @property
    def mean_sensitivity(self) -> float:
        """The mean contention sensitivity of the jobs."""
        return fmean(self.sensitivities)


@dataclass
class _PublishedLoop:
    table: SensitivityTable
    policy: str
    draw: random.Random
    queue: list[_PublishedJob]
    running: list[_PublishedJob] = field(default_factory=list)
    free: list[int] = field(default_factory=lambda: [_GPUS] * _NODES)
    rounds_by_gpus: list[int] = field(default_factory=lambda: [0] * (_NODES * _GPUS + 1))
    skipped: int = 0

    def run(self) -> None:
        place = self._place_at_random if self.policy.startswith("random") else self._place_head
        while self.queue or self.running:
            while place():
                pass
            self.rounds_by_gpus[_NODES * _GPUS - sum(self.free)] += 1
            self._lower_ratios()
            self._progress()
            stops = self.policy in ("las", "srtf")
            for job in [each for each in self.running if stops or each.ratio <= STOP_RATIO]:
                self._free(job)
                self.queue.append(job)

    def _place_head(self) -> bool:
        order: dict[str, Callable[[_PublishedJob], float]] = {
            "las": lambda job: -job.trained_s,
            "srtf": lambda job: job.done / job.samples,
        }
        self.queue.sort(key=order[self.policy])
        return bool(self.queue) and self._start_on_most_nodes(self.queue[0])

    def _place_at_random(self) -> bool:
        candidates = [job for gpus in sorted(_LAYOUTS) if (job := self._first_waiting(gpus)) is not None]
        action = self.draw.randrange(len(_SETS) + 1)
        if action < len(_SETS):
            nodes = _SETS[action]
            for job in candidates:
                fits = all(self.free[node] >= job.gpus // len(nodes) for node in nodes)
                if len(nodes) in _LAYOUTS[job.gpus] and fits:
                    self._start(job, nodes)
                    return True
        return self.policy == "random-fallback" and any(map(self._start_on_most_nodes, candidates))

    def _first_waiting(self, gpus: int) -> _PublishedJob | None:
        return next((job for job in self.queue if job.gpus == gpus), None)

    def _start_on_most_nodes(self, job: _PublishedJob) -> bool:
        for count in _LAYOUTS[job.gpus]:
            nodes = [node for node in range(_NODES) if self.free[node] >= job.gpus // count]
            if len(nodes) >= count:
                self._start(job, tuple(nodes[:count]))
                return True
        return False

    def _start(self, job: _PublishedJob, nodes: tuple[int, ...]) -> None:
        self.queue.remove(job)
        self.running.append(job)
        job.nodes, job.ratio, job.starts = nodes, 1.0, job.starts + 1
        for node in nodes:
            self.free[node] -= job.share

    def _free(self, job: _PublishedJob) -> None:
        self.running.remove(job)
        for node in job.nodes:
            self.free[node] += job.share

    def _lower_ratios(self) -> None:
        for job in self.running:
            for other in self.running:
                if other is not job and set(job.nodes) & set(other.nodes):
                    job.ratio = min(job.ratio, max(self.table.ratio(job.layout, other.layout), FLOOR))

    def _progress(self) -> None:
        position, present = 0, len(self.running)
        while position < len(self.running):
            job = self.running[position]
            position += 1
            present -= 1
            job.done += self.table.throughput(job.layout) * job.ratio * ROUND_S
            job.trained_s += ROUND_S
            job.sensitivity += 1 / job.ratio
            if job.samples - job.done < job.ratio * ROUND_S:
                self._free(job)  # what follows moves up, and the next one is skipped
                job.finish_s = sum(self.rounds_by_gpus) * ROUND_S
        self.skipped += present


def run_published(
    trace: ContentionTrace, table: SensitivityTable, policy: str, seed: int = 0
) -> PublishedOutcome:
    """Run a trace by the public loop, faults included, on 4 nodes of 8 GPUs.

    Args:
        trace: of jobs that arrive at time 0: the public code has no arrivals.
        table: of throughputs and ratios.
        policy: one of `POLICIES`.
        seed: of random actions.

    Raises:
        UsageError: another policy, a job that arrives later, or one with a number of GPUs other than 2, 4 and 8.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy of the public loop: expected {', '.join(POLICIES)}, got {shown(policy)}")
    for index, job in enumerate(trace.jobs):
        if job.arrival_ns:
            raise UsageError(
                f"{trace.place(index)}: arrival_s: expected 0 in the public loop, got a later one"
            )
        if job.gpus not in _LAYOUTS:
            raise UsageError(f"{trace.place(index)}: gpus: expected 2, 4 or 8, got {job.gpus}")
    trace.check_rows(table)
    jobs = [_PublishedJob(job.model, job.gpus, job.samples) for job in trace.jobs]
    loop = _PublishedLoop(table, policy, random.Random(seed), list(jobs))
    loop.run()
    return PublishedOutcome(
        tuple(job.finish_s for job in jobs),
        tuple(float(job.trained_s) for job in jobs),
        tuple(loop.rounds_by_gpus),
        fmean(job.starts - 1 for job in jobs),
        tuple(job.sensitivity * ROUND_S / job.trained_s for job in jobs),
        loop.skipped,
    )


def run_published_seeds(
    trace: ContentionTrace, table: SensitivityTable, policy: str, seeds: Sequence[int]
) -> list[PublishedOutcome]:
    """Run a trace for several seeds of random actions; once if nothing is drawn."""
    return [
        run_published(trace, table, policy, seed)
        for seed in (seeds if policy.startswith("random") else seeds[:1])
    ]
