"""The mode auto for jobs that come and go: in steps while they could contend with others, by shares while they cannot.

Which jobs could is said by `simulation.contending_jobs`. When jobs come, leave or get other routes, those for which
that changes go on in the other mode: at once if they have not begun yet, or else when their current iteration has
ended, with a congestion control that begins anew. Until then they and their new neighbours do not see each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mltcp.core.errors import UsageError
from placement.simulator.fluid import Iterations
from placement.simulator.network.outcome import LostTime
from placement.simulator.network.routing import Route
from placement.simulator.network.simulation import asked_bps, contending_jobs
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob
from placement.simulator.share_run import ShareRun
from placement.simulator.step_run import StepRun


@dataclass
class _RunningJob:
    """A job that runs: from when on, up to which iteration, what it may ask of each link, and in which simulation."""

    job: NetworkJob
    routes: Sequence[Route]
    silence_ns: float
    begins_ns: float
    end: int
    asks_bps: Mapping[int, float]
    run: ShareRun | StepRun


class AutoRun:
    """A simulation of jobs, numbered from 0, in the mode `auto`; see `ShareRun` for its methods.

    Args:
        network: hosts and links.
        shares, steps: of the same jobs on it, without a gate; none of them has started.
    """

    def __init__(self, network: Network, shares: ShareRun, steps: StepRun) -> None:
        self._network, self._shares, self._steps = network, shares, steps
        self._running: dict[int, _RunningJob] = {}
        self._done: dict[int, int] = defaultdict(int)
        self._found: dict[int, list[Iterations]] = defaultdict(list)

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return self._shares.now_ns

    @property
    def is_still(self) -> bool:
        """See `ShareRun.is_still`."""
        return self._shares.is_still and self._steps.is_still

    def start(
        self,
        number: int,
        job: NetworkJob,
        routes: Sequence[Route],
        *,
        silence_ns: float = 0.0,
        hold_ns: float = 0.0,
    ) -> None:
        """See `ShareRun.start`."""
        if number in self._running:
            raise UsageError(f"job {job.name} runs already")
        self._running[number] = _RunningJob(
            job,
            routes,
            silence_ns,
            self.now_ns + hold_ns,
            self._done[number] + job.iterations,
            asked_bps(self._network, job, routes),
            self._shares,
        )
        contending = self._contending()
        self._begin(number, number in contending, hold_ns)
        self._plan(contending)

    def stop(self, number: int) -> None:
        """End a job; its current iteration is lost."""
        run = self._running.pop(number).run
        run.stop(number)
        self._leave(number, run)
        self._plan(self._contending())

    def change_links(self, down: Collection[int], routes: Mapping[int, Sequence[Route]]) -> None:
        """See `ShareRun.change_links`."""
        for run in (self._shares, self._steps):
            own = {number: ways for number, ways in routes.items() if self._running[number].run is run}
            run.change_links(down, own)
        for number, ways in routes.items():
            running = self._running[number]
            running.routes, running.asks_bps = ways, asked_bps(self._network, running.job, ways)
        self._plan(self._contending())

    def delay(self, number: int, by_ns: float) -> None:
        """See `ShareRun.delay`."""
        self._running[number].run.delay(number, by_ns)

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have done all of their iterations; returns these jobs."""
        while ended := self._advance(until_ns):
            leaving = {number: self._running[number] for number in ended}
            for number, running in leaving.items():
                self._leave(number, running.run)
            finished = tuple(number for number in ended if self._done[number] == leaving[number].end)
            for number in finished:
                del self._running[number]
            contending = self._contending()
            for number in leaving.keys() - set(finished):
                self._begin(number, number in contending, delay_ns=leaving[number].run.delay_left_ns(number))
            if finished:
                self._plan(contending)
                return finished
        return ()

    def iterations_left(self, number: int) -> int:
        """The iterations that the job has left."""
        running = self._running.get(number)
        return 0 if running is None else running.end - running.run.done(number)

    def reference_ns(self, number: int) -> float | None:
        """See `ShareRun.reference_ns`; None before the first one after a change of the mode, too."""
        running = self._running.get(number)
        return None if running is None else running.run.reference_ns(number)

    def iterations(self) -> dict[int, Iterations]:
        """The iterations of each job that ended since the last call; those in steps with the bits that were marked."""
        self._collect()
        found, self._found = self._found, defaultdict(list)
        return {number: _joined(parts) for number, parts in found.items()}

    @property
    def lost_time(self) -> LostTime | None:
        """See `ShareRun.lost_time`."""
        parts = [lost for run in (self._shares, self._steps) if (lost := run.lost_time) is not None]
        jobs = len(parts[0].took_ns) if parts else 0
        return LostTime.joined([(range(jobs), part) for part in parts], jobs) if parts else None

    def _begin(self, number: int, contends: bool, hold_ns: float = 0.0, delay_ns: float = 0.0) -> None:
        running, done = self._running[number], self._done[number]
        running.run = self._steps if contends else self._shares
        job = replace(running.job, iterations=running.end - done)
        running.run.start(
            number,
            job,
            running.routes,
            silence_ns=running.silence_ns,
            hold_ns=hold_ns,
            delay_ns=delay_ns,
            done=done,
        )

    def _plan(self, contending: Collection[int]) -> None:
        """Let each job leave the simulation that it is in, if it belongs into the other one."""
        for number, running in self._running.items():
            stays = (running.run is self._steps) == (number in contending)
            if not stays and self.now_ns <= running.begins_ns:
                delay_ns = running.run.delay_left_ns(number)
                running.run.stop(number)
                self._begin(number, number in contending, running.begins_ns - self.now_ns, delay_ns)
            else:
                running.run.plan(number, running.end - running.run.done(number) if stays else 1)

    def _contending(self) -> set[int]:
        """The jobs that could contend with others."""
        asks = {number: running.asks_bps for number, running in self._running.items()}
        return {number for jobs in contending_jobs(self._network, asks) for number in jobs}

    def _advance(self, until_ns: float) -> tuple[int, ...]:
        """Advance both until a time, or until jobs leave one of them; returns these jobs.

        Shares go first. Where steps end a job before, they go back and on to that time.
        """
        kept = self._shares.kept()
        ended = self._shares.run(until_ns)
        in_steps = self._steps.run(self._shares.now_ns)
        if in_steps and self._steps.now_ns < self._shares.now_ns:
            self._shares.restore(kept)
            ended = self._shares.run(self._steps.now_ns)
        return (*ended, *in_steps)

    def _leave(self, number: int, run: ShareRun | StepRun) -> None:
        self._collect()  # before another start
        self._done[number] = run.done(number)

    def _collect(self) -> None:
        for run in (self._shares, self._steps):
            for number, iterations in run.iterations().items():
                self._found[number].append(iterations)


def _joined(parts: Sequence[Iterations]) -> Iterations:
    """Those of several simulations, in the order of time."""
    columns = zip(*((part.began_ns, part.ended_ns, part.marked_bits) for part in parts), strict=True)
    began_ns, ended_ns, marked_bits = (np.concatenate(column) for column in columns)
    order = np.argsort(ended_ns, kind="stable")
    return Iterations(began_ns[order], ended_ns[order], marked_bits[order])
