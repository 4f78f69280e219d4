"""The step mode for jobs that come and go: a simulation that is advanced to a time, and that jobs join and leave.

Each job has a place in the arrays from the beginning, as large as the widest of its iterations, as in `share_run`. What
changes at a time is in force from the step on in which that time comes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import drop
from placement.simulator.fluid import Iterations
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.outcome import LostTime
from placement.simulator.network.routing import Route
from placement.simulator.network.steps.build import build
from placement.simulator.network.steps.changes import changed, take_off, with_hops, with_levels
from placement.simulator.network.steps.iterations import ACTIVE, UNFINISHED, begin_iteration
from placement.simulator.network.steps.loop import TO_END, advance, list_active
from placement.simulator.network.steps.lost import attributing, lost_time, with_rows
from placement.simulator.network.steps.records import HOP, StepState
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob, Traffic

_TOTALS = ("took", "waited", "unhindered")
"""Of a job, over all of its starts."""


class StepRun:
    """A simulation of jobs, numbered from 0, in the mode `steps`; times are in ns since its beginning.

    Args:
        network: hosts and links.
        widest: of each job, by name, the largest traffic that it may start with.
        laws: of the flows of each job.
        seed: of all that is drawn.
        step_ns: the length of a step.
        attributes: whether lost time is attributed to links and neighbours.
    """

    def __init__(
        self,
        network: Network,
        widest: Sequence[tuple[str, Traffic]],
        laws: Sequence[NetworkLaw],
        seed: int,
        step_ns: int,
        attributes: bool = False,
    ) -> None:
        self._network, self._laws, self._seed, self._step_ns = network, laws, seed, step_ns
        jobs = [
            NetworkJob(name, traffic, (0,) * traffic.workers, law, 0)
            for (name, traffic), law in zip(widest, laws, strict=True)
        ]
        # Any link will do: a connection without one would have no flow.
        unplaced = [[(0,)] * len(traffic.messages) for _, traffic in widest]
        self._state = build(network, jobs, unplaced, seed)
        if attributes:
            self._state = attributing(self._state)
        self._state.counts[UNFINISHED] = 0
        self._room = self._state.jobs.copy()
        first_steps = self._state.steps[self._room["first_step"]]
        self._first_messages, self._first_nexts = first_steps["first_message"], first_steps["first_next"]
        self._hops: list[tuple[int, int]] = [(0, 0)] * len(jobs)
        self._silence, self._done, self._logged = (np.zeros(len(jobs), np.int64) for _ in range(3))
        self._down: Collection[int] = ()
        self._now_ns = 0

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return float(self._now_ns)

    @property
    def is_still(self) -> bool:
        """Whether nothing will happen any more: there are no jobs, or all of them wait for links that are down."""
        return not self._state.events.size[0] and not self._state.counts[ACTIVE]

    def start(
        self,
        number: int,
        job: NetworkJob,
        routes: Sequence[Route],
        *,
        silence_ns: float = 0.0,
        hold_ns: float = 0.0,
        delay_ns: float = 0.0,
        done: int | None = None,
    ) -> None:
        """Start a job that does not run; see `ShareRun.start`."""
        if self.runs(number):
            raise UsageError(f"job {job.name} runs already")
        self._done[number] = self.done(number) if done is None else done
        self._logged[number], self._silence[number] = 0, round(silence_ns)
        own = build(self._network, [replace(job, law=self._laws[number])], [routes], self._seed)
        clear_job(self._state, number)
        self._place(number, own)
        self._add_rows(number, job, own)
        self._state = with_levels(self._state, len(self._network.links))
        list_active(self._state)
        self._state.jobs["delay"][number] = round(delay_ns)
        begin_iteration(self._state, number, self._now_ns + round(hold_ns))
        self._state.counts[UNFINISHED] += 1
        if self._down:
            self.change_links(self._down, {})

    def stop(self, number: int) -> None:
        """End a job; its current iteration is lost."""
        clear_job(self._state, number)
        self._state.jobs["iterations"][number] = self._state.jobs["iteration"][number]
        self._state.counts[UNFINISHED] -= 1

    def change_links(self, down: Collection[int], routes: Mapping[int, Sequence[Route]]) -> None:
        """Let links be down, by number, and jobs go on over other routes; see `failures`."""
        self._down = down
        self._state = changed(self._state, self._network, self._now_ns, down, routes)

    def delay(self, number: int, by_ns: float) -> None:
        """Delay the start of a job's next iteration, once."""
        self._state.jobs["delay"][number] += round(by_ns)

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have done all of their iterations; returns these jobs."""
        running = self._running()
        advance(self._state, self._step_ns, round(until_ns), TO_END)
        ended = np.flatnonzero(running & ~self._running())
        jobs = self._state.jobs[ended]
        latest = self._state.ends[jobs["first_row"] + jobs["iteration"] - 1].max(initial=self._now_ns)
        self._now_ns = int(latest) if len(ended) else max(self._now_ns, round(until_ns))
        return tuple(ended.tolist())

    def done(self, number: int) -> int:
        """See `ShareRun.done`."""
        return int(self._done[number] + self._state.jobs["iteration"][number])

    def plan(self, number: int, left: int) -> None:
        """See `ShareRun.plan`; a job has no more iterations than it was started with."""
        self._state.jobs["iterations"][number] = self._state.jobs["iteration"][number] + left

    def delay_left_ns(self, number: int) -> float:
        """See `ShareRun.delay_left_ns`."""
        return float(self._state.jobs["delay"][number])

    def runs(self, number: int) -> bool:
        """Whether the job has iterations left."""
        return bool(self._running()[number])

    def iterations_left(self, number: int) -> int:
        """The iterations that the job has left."""
        record = self._state.jobs[number]
        return int(record["iterations"] - record["iteration"])

    def reference_ns(self, number: int) -> float | None:
        """The start of its last iteration, as an agent sees it; see `ShareRun.reference_ns`."""
        record = self._state.jobs[number]
        if not self.runs(number) or not record["told"] or record["delay"]:
            return None
        return float(record["first_sent"] - self._silence[number])

    def delivered_bytes(self, number: int) -> float:
        """The bytes of the job's messages that have reached their receivers since its start."""
        record, flows = self._state.jobs[number], self._state.flows
        first = int(record["first_flow"])
        return float(flows["delivered_in_all"][first : first + int(record["flows"])].sum())

    def iterations(self) -> dict[int, Iterations]:
        """The iterations of each job that ended since the last call, with the bits of them that were marked."""
        found, state = {}, self._state
        for number in np.flatnonzero(state.jobs["iteration"] > self._logged).tolist():
            first, logged = int(state.jobs["first_row"][number]), int(self._logged[number])
            rows = slice(first + logged, first + int(state.jobs["iteration"][number]))
            before = state.marks[rows.start - 1] if logged else 0.0
            marked = 8 * np.diff(state.marks[rows], prepend=before)
            found[number] = Iterations(state.begins[rows] * 1.0, state.ends[rows] * 1.0, marked)
            self._logged[number] = state.jobs["iteration"][number]
        return found

    @property
    def lost_time(self) -> LostTime | None:
        """See `ShareRun.lost_time`."""
        return lost_time(self._state) if self._state.lost.shape[2] else None

    def _running(self) -> np.ndarray:
        return np.asarray(self._state.jobs["iterations"] > self._state.jobs["iteration"])

    def _place(self, number: int, own: StepState) -> None:
        """Write the flows, steps and messages of a job that was built alone into its place."""
        room, message, nexts = self._room[number], self._first_messages[number], self._first_nexts[number]
        step, flow = int(room["first_step"]), int(room["first_flow"])
        for name, wanted, most in (
            ("steps", len(own.steps), room["steps"]),
            (
                "messages",
                len(own.messages),
                _room_for(self._first_messages, number, len(self._state.messages)),
            ),
            ("connections", len(own.flows), room["flows"]),
            ("steps that wait", len(own.nexts), _room_for(self._first_nexts, number, len(self._state.nexts))),
        ):
            if wanted > most:
                raise UsageError(f"job {number}: {name}: expected at most {most}, got {wanted}")
        if self._hops[number][1] < len(own.hops):
            self._hops[number] = len(self._state.hops), len(own.hops)
            self._state = with_hops(self._state, np.zeros(len(own.hops), HOP))
        hop, state = self._hops[number][0], self._state
        own.flows["law"] = self._law_numbers(own.laws)[own.flows["law"]]
        own.flows["first_hop"] += hop
        own.hops["flow"] += flow
        own.flows["job"] = own.steps["job"] = number
        own.steps["first_message"] += message
        own.steps["first_next"] += nexts
        own.messages["step"] += step
        own.messages["flow"][own.messages["flow"] >= 0] += flow
        state.flows["hops"][flow : flow + int(room["flows"])] = 0
        for array, first, values in (
            (state.flows, flow, own.flows),
            (state.hops, hop, own.hops),
            (state.steps, step, own.steps),
            (state.messages, message, own.messages),
            (state.nexts, nexts, own.nexts + step),
            (state.class_bounds, number, own.class_bounds),
        ):
            array[first : first + len(values)] = values
        if state.lost.shape[2]:
            self._state = with_rows(state, range(flow, flow + len(own.flows)))

    def _law_numbers(self, laws: np.ndarray) -> np.ndarray:
        """The numbers that laws have here; those that are new get one."""
        numbers = {law.tobytes(): number for number, law in enumerate(self._state.laws)}
        new = [number for number, law in enumerate(laws) if law.tobytes() not in numbers]
        self._state = self._state._replace(laws=np.concatenate([self._state.laws, laws[new]]))
        for law in laws[new]:
            numbers[law.tobytes()] = len(numbers)
        return np.array([numbers[law.tobytes()] for law in laws], np.uint32)

    def _add_rows(self, number: int, job: NetworkJob, own: StepState) -> None:
        """Give a job a row for each iteration; the k-th one has the same noise whenever the job was started."""
        state, done = self._state, int(self._done[number])
        record, row = state.jobs[number], len(state.begins)
        for name in state.jobs.dtype.names:
            if name not in ("first_step", "first_flow", *_TOTALS):
                record[name] = own.jobs[0][name]
        record["first_row"] = row
        self._state = state._replace(
            noise=np.concatenate([state.noise, job.noise(self._seed, done + job.iterations)[done:]]),
            begins=np.concatenate([state.begins, own.begins]),
            ends=np.concatenate([state.ends, own.ends]),
            marks=np.concatenate([state.marks, own.marks]),
            holds=np.concatenate([state.holds, own.holds]),
        )


def _room_for(firsts: np.ndarray, number: int, end: int) -> int:
    """The number of places from the first one of a job to that of the next."""
    return int((firsts[number + 1] if number + 1 < len(firsts) else end) - firsts[number])


@compiled
def clear_job(state: StepState, number: int) -> None:
    """Take all that a job does, and is due to do, out of the simulation."""
    job = state.jobs[number]
    for s in range(job.first_step, job.first_step + job.steps):
        drop(state.events, s)
        for m in range(state.steps[s].first_message, state.steps[s].first_message + state.steps[s].messages):
            drop(state.events, len(state.steps) + m)
    for f in range(job.first_flow, job.first_flow + job.flows):
        take_off(state, f)
        state.flows[f].head = -1
        state.flows[f].is_cut = 0
    list_active(state)
