"""A fluid simulation of jobs with demand phases on shared links: no packets, only rates, and exact in time.

A job's iteration is its phases, one after the other. A silent phase lasts its time; one with a bandwidth has bits to
move, at most at its bandwidth, and at its max-min fair share of every link it uses (ideal congestion control: fair at
once, without loss or delay). Iterations follow each other; a delay (a time shift) holds the start of one of them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.simulator import flows
from placement.simulator.flows import CORE, ENDED, FLOW, Flows

NOISE = 1024
"""Random numbers a job, used cyclically: iterations k and k + 1024 of a job have the same noise."""

_LOG = 16_384
_SEND, _NS = 1e-9, 1e9


@dataclass(frozen=True)
class Iterations:
    """The iterations of a job that ended between two calls of `iterations`, in order.

    Attributes:
        began_ns: the end of the iteration before each, or the start of the job.
        ended_ns: the end of each.
        marked_bits: the bits that each sent over links while demand exceeded their capacity.
    """

    began_ns: np.ndarray
    ended_ns: np.ndarray
    marked_bits: np.ndarray

    @property
    def duration_ns(self) -> np.ndarray:
        """The duration of each iteration."""
        return self.ended_ns - self.began_ns


class Fluid:
    """A fluid simulation of jobs on links. Both are numbered from 0; times are in ns since the start.

    Args:
        capacities_bps: of each link.
        jobs: the most jobs.
        most_phases: the most phases of an iteration.
        seed: of the noise. The k-th iteration of a job has the same noise whatever else happens.
        congestion_loss: the share of its capacity that a link loses while demand exceeds it; 0 for ideal fair sharing.

    Raises:
        UsageError: a capacity that is not positive, no jobs, or a loss outside of 0 to (not including) 1.
    """

    def __init__(
        self,
        capacities_bps: Sequence[float],
        jobs: int,
        *,
        most_phases: int = 16,
        seed: int = 0,
        congestion_loss: float = 0.0,
    ) -> None:
        if not capacities_bps or min(capacities_bps) <= 0:
            raise UsageError("links: expected one or more, each with a capacity above 0 bit/s")
        if jobs < 1 or most_phases < 1:
            raise UsageError(f"jobs and phases: expected 1 or more, got {jobs} and {most_phases}")
        if not 0 <= congestion_loss < 1:
            raise UsageError(f"congestion_loss: expected 0 <= congestion_loss < 1, got {congestion_loss}")
        links = len(capacities_bps)
        self._world = Flows(
            flows=np.zeros(jobs, FLOW).view(np.recarray),
            core=np.zeros(1, CORE).view(np.recarray),
            duration=np.zeros((jobs, most_phases)),
            bandwidth=np.zeros((jobs, most_phases)),
            way=np.zeros((jobs, links), np.int64),
            capacity=np.array(capacities_bps, float) * _SEND,
            demand=np.zeros(links),
            spare=np.zeros(links),
            unmet=np.zeros(links, np.int64),
            rate=np.zeros(jobs),
            noise=_noise(seed, jobs),
            ended=np.zeros(_LOG + jobs, ENDED).view(np.recarray),
            link_bits=np.zeros(links),
            link_marked=np.zeros(links),
        )
        self._world.core.loss[0] = congestion_loss
        self._log: list[np.ndarray] = []

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return float(self._world.core.now[0])

    @property
    def link_bits(self) -> np.ndarray:
        """The bits that each link has carried."""
        return self._world.link_bits.copy()

    @property
    def link_marked_bits(self) -> np.ndarray:
        """The bits that each link has carried while demand exceeded its capacity."""
        return self._world.link_marked.copy()

    def start(
        self,
        job: int,
        phases: Sequence[Phase],
        links: Sequence[int],
        iterations: int,
        *,
        hold_ns: float = 0.0,
        noise_ns: float = 0.0,
    ) -> None:
        """Start a job that does not run.

        Args:
            job: its number.
            phases: of an iteration.
            links: the links that it sends over; without any it always has its full bandwidth.
            iterations: the number after which it ends.
            hold_ns: the delay of the first iteration, which is no part of its duration.
            noise_ns: the standard deviation of an iteration's computation time.

        Raises:
            UsageError: the job runs already, or an argument is out of range.
        """
        world = self._world
        flow = world.flows[job]
        if flow.running:
            raise UsageError(f"job {job} runs already")
        if not 1 <= len(phases) <= world.duration.shape[1] or iterations < 1 or hold_ns < 0 or noise_ns < 0:
            raise UsageError(
                f"job {job}: expected 1 to {world.duration.shape[1]} phases, 1 or more iterations and no negative "
                f"time, got {len(phases)} phases, {iterations} iterations, {hold_ns} ns and {noise_ns} ns"
            )
        if any(not 0 <= link < len(world.capacity) for link in links) or len(set(links)) != len(links):
            raise UsageError(
                f"job {job}: links: expected numbers below {len(world.capacity)}, each once, got {list(links)}"
            )
        world.duration[job, : len(phases)] = [phase.duration_ns for phase in phases]
        world.bandwidth[job, : len(phases)] = [phase.bandwidth_bps * _SEND for phase in phases]
        world.way[job, : len(links)] = links
        flow.phases, flow.links, flow.to_do, flow.noise = len(phases), len(links), iterations, noise_ns
        flow.silence, flow.marked = Demand(tuple(phases)).silence_ns, 0.0
        flows.begin(world, job, float(hold_ns))

    def stop(self, job: int) -> None:
        """End a job between two events; its current iteration is lost."""
        flow = self._world.flows[job]
        if flow.sending:
            self._world.core.stale[0] = 1
        flow.running = flow.sending = 0

    def delay(self, job: int, by_ns: float) -> None:
        """Delay the start of a job's next iteration, once.

        Raises:
            UsageError: the delay is negative.
        """
        if by_ns < 0:
            raise UsageError(f"job {job}: delay: expected 0 ns or more, got {by_ns}")
        self._world.flows[job].delay += by_ns

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have done all of their iterations; returns these jobs.

        Raises:
            UsageError: the time is not finite.
        """
        if not np.isfinite(until_ns):
            raise UsageError(f"until_ns: expected a finite time, got {until_ns}")
        world = self._world
        before = world.flows.running.copy()
        while self.now_ns < until_ns:
            flows.advance(world, float(until_ns))
            logged = int(world.core.logged[0])
            self._log.append(np.array(world.ended[:logged]))
            world.core.logged[0] = 0
            if world.core.ended[0]:
                break
        return tuple(int(job) for job in np.flatnonzero(before & (world.flows.running == 0)))

    def runs(self, job: int) -> bool:
        """Whether the job has iterations left."""
        return bool(self._world.flows.running[job])

    def iterations_left(self, job: int) -> int:
        """The iterations that the job has left."""
        return int(self._world.flows.to_do[job])

    def sent_bits(self, job: int) -> float:
        """The bits that it has sent in all iterations so far, the current one included."""
        return float(self._world.flows.bits[job])

    def reference_ns(self, job: int) -> float | None:
        """The start of its last iteration, derived from its first communication, as an agent sees it.

        None before the first one after a start or a delay, and while a delay is still to come.
        """
        flow = self._world.flows[job]
        return float(flow.reference) if flow.running and flow.told and flow.delay == 0 else None

    def iterations(self) -> dict[int, Iterations]:
        """The iterations of each job that ended since the last call."""
        log = np.concatenate(self._log) if self._log else np.zeros(0, ENDED)
        self._log = []
        found = {}
        for job in np.unique(log["flow"]):
            of_job = log[log["flow"] == job]
            found[int(job)] = Iterations(of_job["began"], of_job["ended"], of_job["marked"])
        return found


def _noise(seed: int, jobs: int) -> np.ndarray:
    drawn = [np.random.default_rng((seed, job)).standard_normal(NOISE) for job in range(jobs)]
    return np.array(drawn)
