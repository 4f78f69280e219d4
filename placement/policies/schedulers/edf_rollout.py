"""EDF on efficient numbers of GPUs that tries out whether another job, or none, is better to start now.

The choices are the first jobs by deadline that fit, and to wait. Each is tried on futures: from now on jobs arrive as
those that are there arrived in the last hours, and the base rule (see `futures`) goes on. The choice after which the
most jobs are in time, in the mean of the futures, is made. The futures are drawn from the jobs that the scheduler sees;
it keeps no history and knows nothing of the arrivals to come. Jobs that are late anyway start only while no other job
runs or waits. The method is the rollout of Bertsekas, Tsitsiklis and Wu (Journal of Heuristics 3(3), 1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_HOUR
from placement.model.cluster import Cluster
from placement.policies.schedulers.deadlines.scheduler import start_on_whole_nodes
from placement.policies.schedulers.free_gpus import FreeGpus, largest_node, running_end_ns
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed, deadline_of
from placement.policies.schedulers.speeds import Option, efficient_options

if TYPE_CHECKING:
    from placement.policies.schedulers.futures import Options, Queue

_MOST_ARRIVALS = 400
_MARGIN = 0.1
"""Jobs, in the mean of the futures, by which another choice must be better than the first job by deadline."""


@dataclass(frozen=True)
class EdfRollout(Untimed):
    """EDF with rollouts; no job is interrupted.

    Attributes:
        futures: their number; 32 to 96 differ by 0.002 of the guarantee rate.
        choices: how many jobs are tried.
        horizon_ns: for which jobs arrive in a future.
        window_ns: of the arrivals by which futures are drawn.
        correction: the rate of arrivals in a future, relative to that of the jobs that arrived in the window and are
            still there: others have ended.

    Raises:
        UsageError: a number is not positive.
    """

    name = "edf-rollout"
    futures: int = 32
    choices: int = 4
    horizon_ns: int = 2 * NS_PER_HOUR
    window_ns: int = 2 * NS_PER_HOUR
    correction: float = 2.0

    def __post_init__(self) -> None:
        for name in ("futures", "choices", "horizon_ns", "window_ns", "correction"):
            if not getattr(self, name) > 0:
                raise UsageError(f"edf-rollout: {name}: expected more than 0, got {getattr(self, name)}")

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        assignment = {job.name: job.gpus for job in jobs if job.gpus}
        free = FreeGpus(cluster, assignment)
        if len(assignment) == len(jobs) or not free.total:
            return (assignment,)
        decision = _Decision(self, cluster, now_ns, jobs)
        while (job := decision.next_start(free)) is not None:
            gpus, cross_node = decision.option(job)
            taken = free.take(gpus, cross_node)
            assert taken is not None, "a choice fits"
            assignment[job.name] = taken
            decision.started(job, taken)
        if decision.only_late:
            return (start_on_whole_nodes(cluster, now_ns, decision.late, assignment),)
        return (assignment,)


class _Decision:
    """The state of one decision as arrays.

    Attributes:
        late: the waiting jobs that end late on any number of GPUs.
        only_late: whether no job that is in time runs or waits.
    """

    def __init__(self, policy: EdfRollout, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> None:
        # numba takes long to import: only this scheduler pays for it.
        from placement.policies.schedulers import futures

        self._compiled, self._policy, self._cluster, self._now_ns = futures, policy, cluster, now_ns
        self._node = largest_node(cluster)
        self._listed = [self._options_of(job) for job in jobs]
        self._options = self._table()
        self._rows = {job.name: row for row, job in enumerate(jobs)}
        in_time = {
            job.name: self._first_in_time(job, listed)
            for job, listed in zip(jobs, self._listed, strict=True)
            if not job.gpus
        }
        self._chosen = {name: option for name, option in in_time.items() if option is not None}
        self._queue = sorted((job for job in jobs if job.name in self._chosen), key=deadline_of)
        self.late = [job for job in jobs if not job.gpus and job.name not in self._chosen]
        recent = [job for job in jobs if job.arrival_ns > now_ns - policy.window_ns]
        self._seen = self._arrays(recent)
        self._rate = len(recent) * policy.correction / policy.window_ns
        self._ends = [running_end_ns(cluster, job, now_ns) for job in jobs if job.gpus]
        self._held = [self._by_node(job.gpus) for job in jobs if job.gpus]
        running = zip((job for job in jobs if job.gpus), self._ends, strict=True)
        self._in_time = any(end_ns <= deadline_of(job) for job, end_ns in running)

    @property
    def only_late(self) -> bool:
        """See the class."""
        return not self._queue and not self._in_time

    def option(self, job: JobView) -> tuple[int, bool]:
        """The number of GPUs that the job gets now, and whether across nodes."""
        return self._chosen[job.name][:2]

    def next_start(self, free: FreeGpus) -> JobView | None:
        """The job to start now; None if all wait."""
        counts = free.counts
        choices = [position for position, job in enumerate(self._queue) if self._fits(job, counts)]
        choices = choices[: self._policy.choices]
        if not choices:
            return None
        if self._ends:
            choices.append(self._compiled.WAIT)
        if len(choices) == 1:
            return self._queue[choices[0]]
        policy, nodes = self._policy, len(counts)
        best = self._compiled.best_choice(
            self._now_ns,
            policy.horizon_ns,
            self._rate,
            policy.futures,
            _MOST_ARRIVALS,
            _MARGIN,
            self._options,
            self._compiled.Machines(
                np.array(counts, np.int64),
                np.array(self._ends, np.int64),
                np.array(self._held, np.int64).reshape(-1, nodes),
            ),
            self._arrays(self._queue),
            self._seen,
            np.array(choices, np.int64),
        )
        chosen = choices[best]
        return None if chosen == self._compiled.WAIT else self._queue[chosen]

    def started(self, job: JobView, gpus: Sequence[int]) -> None:
        """Note that a job has been given GPUs."""
        self._ends.append(self._now_ns + self._chosen[job.name][2])
        self._held.append(self._by_node(gpus))
        self._queue.remove(job)
        self._in_time = True

    def _options_of(self, job: JobView) -> tuple[Option, ...]:
        iterations = job.iterations if job.gpus else job.iterations_left
        listed = efficient_options(job, iterations, self._node, len(self._cluster.gpus))
        if not job.restart_ns or job.gpus:
            return listed
        return tuple((gpus, cross_node, run_ns + job.restart_ns) for gpus, cross_node, run_ns in listed)

    def _first_in_time(self, job: JobView, listed: Sequence[Option]) -> Option | None:
        slack_ns = deadline_of(job) - self._now_ns
        return next((option for option in listed if option[2] <= slack_ns), None)

    def _table(self) -> Options:
        width = max(len(listed) for listed in self._listed)
        table = np.zeros((3, len(self._listed), width), np.int64)
        for row, listed in enumerate(self._listed):
            for column, (gpus, cross_node, run_ns) in enumerate(listed):
                table[:, row, column] = gpus, cross_node, min(run_ns, self._compiled.NEVER)
        return self._compiled.Options(table[0], table[2], table[1])

    def _fits(self, job: JobView, counts: Sequence[int]) -> bool:
        gpus, cross_node = self.option(job)
        return gpus <= (sum(counts) if cross_node else max(counts))

    def _arrays(self, jobs: Sequence[JobView]) -> Queue:
        return self._compiled.Queue(
            np.array([job.arrival_ns for job in jobs], np.int64),
            np.array([deadline_of(job) for job in jobs], np.int64),
            np.array([self._rows[job.name] for job in jobs], np.int64),
        )

    def _by_node(self, gpus: Sequence[int]) -> list[int]:
        counts = self._cluster.by_node(gpus)
        return [counts.get(node, 0) for node in range(len(self._cluster.servers))]
