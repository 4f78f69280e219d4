"""The step mode for jobs that come and go: a simulation that is advanced to a time, and that jobs join and leave.

The arrays of the step mode have the running jobs. When one joins or leaves they are made anew, and what the others
have sent, queued and learned is carried over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError
from placement.simulator.exact.event_heap import put
from placement.simulator.fluid import Iterations
from placement.simulator.network.routing import Route
from placement.simulator.network.simulation import default_step_ns
from placement.simulator.network.steps.build import build
from placement.simulator.network.steps.iterations import (
    ACTIVE,
    CHANGED,
    FLOW_STEPS,
    STEPS,
    UNFINISHED,
    begin_iteration,
)
from placement.simulator.network.steps.loop import advance
from placement.simulator.network.steps.records import StepState
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob


@dataclass
class _Running:
    """A job that was started, and what it did before the present arrays were made.

    Attributes:
        job: its iterations are those of the present arrays.
        routes: of its messages.
        silence_ns: from the beginning of an iteration to its first message.
        done: iterations that ended before.
        known_from: the first iteration whose beginning tells where the job is: the next one after a start or a delay.
        before_ns: when the last of those that ended before would have begun by its first message.
        marked: bytes that were marked until the end of the last iteration that was reported.
        reported: iterations of the present arrays that were reported.
    """

    job: NetworkJob
    routes: Sequence[Route]
    silence_ns: float
    done: int = 0
    known_from: int = 0
    before_ns: float = 0.0
    marked: float = 0.0
    reported: int = 0


class StepRun:
    """A simulation of jobs, by number, in the mode `steps`; times are in ns since its beginning. See `ShareRun`.

    Args:
        network: hosts and links.
        seed: of the noise and of marks.
        step_ns: None for that of the network's shortest way.
    """

    def __init__(self, network: Network, seed: int = 0, step_ns: int | None = None) -> None:
        self._network, self._seed = network, seed
        self._step_ns = step_ns or _step_ns(network)
        self._now = 0
        self._running: dict[int, _Running] = {}
        self._state: StepState | None = None
        self._log: dict[int, list[Iterations]] = {}

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return float(self._now)

    def start(
        self,
        number: int,
        job: NetworkJob,
        routes: Sequence[Route],
        *,
        silence_ns: float = 0.0,
        hold_ns: float = 0.0,
    ) -> None:
        """Start a job that does not run, for `iterations` more. Arguments as of `ShareRun.start`.

        Raises:
            UsageError: the job runs already.
        """
        if self.runs(number):
            raise UsageError(f"job {job.name} runs already")
        staying = {each: running for each, running in self._running.items() if self.runs(each)}
        staying[number] = _Running(job, routes, silence_ns)
        self._arrange(staying)
        assert self._state is not None
        begin_iteration(self._state, len(staying) - 1, self._now + round(hold_ns))

    def stop(self, number: int) -> None:
        """End a job; its current iteration is lost."""
        self._arrange(
            {each: job for each, job in self._running.items() if each != number and self.runs(each)}
        )

    def delay(self, number: int, by_ns: float) -> None:
        """Delay the start of a job's next iteration, once."""
        running, record = self._running[number], self._record(number)
        following = int(record["iteration"]) + 1
        if following < record["iterations"]:
            self._arrays.noise[record["first_row"] + following] += by_ns
        running.known_from = running.done + following

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have done all of their iterations; returns these jobs."""
        until = round(until_ns)
        before = [number for number in self._running if self.runs(number)]
        if before:
            state = self._arrays
            self._now = int(advance(state, self._now, self._step_ns, until, state.counts[UNFINISHED] - 1))
        else:
            self._now = max(self._now, until)
        return tuple(number for number in before if not self.runs(number))

    def runs(self, number: int) -> bool:
        """Whether the job has iterations left."""
        return number in self._running and self.iterations_left(number) > 0

    def iterations_left(self, number: int) -> int:
        """The iterations that the job has left."""
        record = self._record(number)
        return int(record["iterations"] - record["iteration"])

    def reference_ns(self, number: int) -> float | None:
        """The start of its last iteration, derived from its first message, as an agent sees it.

        None before the first one after a start or a delay, and while a delay is still to come.
        """
        if not self.runs(number):
            return None
        running, record = self._running[number], self._record(number)
        last, row = int(record["iteration"]), int(record["first_row"] + record["iteration"])
        found_ns = float(record["began"]) + self._arrays.noise[row]
        if self._now < found_ns + running.silence_ns:
            found_ns = running.before_ns
            if last:
                found_ns = float(self._arrays.begins[row - 1]) + self._arrays.noise[row - 1]
            last -= 1
        return found_ns if running.done + last >= running.known_from else None

    def iterations(self) -> dict[int, Iterations]:
        """The iterations of each job that ended since the last call, with the bits of it that were marked."""
        self._report()
        found = {
            number: Iterations(
                *(
                    np.concatenate([getattr(part, name) for part in parts])
                    for name in ("began_ns", "ended_ns", "marked_bits")
                )
            )
            for number, parts in self._log.items()
        }
        self._log = {}
        return found

    def delivered_bytes(self, number: int) -> float:
        """What the job's messages have brought to their receivers, since its start."""
        record = self._record(number)
        first = int(record["first_flow"])
        return float(self._arrays.flows["delivered_in_all"][first : first + int(record["flows"])].sum())

    @property
    def _arrays(self) -> StepState:
        assert self._state is not None, "a job was started"
        return self._state

    def _record(self, number: int) -> Any:
        return self._arrays.jobs[list(self._running).index(number)]

    def _report(self) -> None:
        """Log the iterations that have ended."""
        for number, running in self._running.items():
            record = self._record(number)
            rows = slice(
                record["first_row"] + running.reported, record["first_row"] + int(record["iteration"])
            )
            ended = self._arrays.ends[rows].astype(float)
            if not len(ended):
                continue
            marked = np.diff(self._arrays.marked[rows], prepend=running.marked)
            running.reported, running.marked = int(record["iteration"]), float(self._arrays.marked[rows][-1])
            self._log.setdefault(number, []).append(
                Iterations(self._arrays.begins[rows].astype(float), ended, 8 * marked)
            )

    # -- jobs that join and leave ------------------------------------------------------------------

    def _arrange(self, staying: Mapping[int, _Running]) -> None:
        """Make the arrays of these jobs, in which those that ran before go on."""
        old, before = self._state, list(self._running)
        carried = [number for number, each in staying.items() if self._running.get(number) is each]
        self._report()
        for number in carried:
            self._rebase(number)
        jobs, routes = [each.job for each in staying.values()], [each.routes for each in staying.values()]
        state = build(self._network, jobs, routes, self._seed)
        if old is not None:
            places = {number: place for place, number in enumerate(staying)}
            carry_over(old, state, [(before.index(number), places[number]) for number in carried])
        self._state, self._running = state, dict(staying)

    def _rebase(self, number: int) -> None:
        """Count the iterations that have ended as done before the new arrays."""
        running, record = self._running[number], self._record(number)
        ended, row = int(record["iteration"]), int(record["first_row"] + record["iteration"])
        if ended:
            running.before_ns = float(self._arrays.begins[row - 1]) + self._arrays.noise[row - 1]
        running.done += ended
        running.reported = 0
        running.job = replace(running.job, iterations=running.job.iterations - ended)


def carry_over(old: StepState, new: StepState, kept: Sequence[tuple[int, int]]) -> None:
    """Write what jobs have done into new arrays, in which they have no iterations that ended.

    Args:
        old: arrays of jobs that ran.
        new: arrays of jobs none of which has begun.
        kept: of each job that goes on, its place in the old and in the new arrays.
    """
    new.counts[STEPS], new.counts[FLOW_STEPS] = old.counts[STEPS], old.counts[FLOW_STEPS]
    new.links[:] = old.links
    new.links["is_active"] = 0
    flow_numbers: dict[int, int] = {}
    for was, place in kept:
        flow_numbers |= _carry_flows(old, new, old.jobs[was], new.jobs[place])
        _carry_iteration(old, new, old.jobs[was], new.jobs[place])
    active = [
        flow_numbers[flow] for flow in old.active[: old.counts[ACTIVE]].tolist() if flow in flow_numbers
    ]
    new.active[: len(active)] = active
    new.counts[ACTIVE], new.counts[CHANGED] = len(active), 1
    gone = ~np.isin(old.hops["flow"], list(flow_numbers))
    np.subtract.at(new.links["queue"], old.hops["link"][gone].astype(np.int64), old.hops["queue"][gone])
    np.maximum(new.links["queue"], 0.0, out=new.links["queue"])
    used = np.zeros(len(new.links), bool)
    used[new.flows["host_link"][active].astype(np.int64)] = True
    used[new.hops["link"][np.isin(new.hops["flow"], active)].astype(np.int64)] = True
    for name in ("queue", "wait", "marks", "loss", "pausing", "paused"):
        new.links[name][~used] = 0


def _carry_flows(old: StepState, new: StepState, was: Any, job: Any) -> dict[int, int]:
    """Of a job; returns the new number of each of its flows."""
    before, now = _span(was, "flow"), _span(job, "flow")
    flows = old.flows[before].copy()
    messages = _first_message(new, job) - _first_message(old, was)
    first_hops = [int(each) for each in (*new.flows["first_hop"][now][:1], *flows["first_hop"][:1])]
    hops = first_hops[0] - first_hops[1] if first_hops else 0
    for name, shift in (("head", messages), ("tail", messages), ("tail_hop", hops)):
        flows[name][flows[name] >= 0] += shift
    for name in ("law", "job", "first_hop"):
        flows[name] = new.flows[name][now]
    flows["iteration"] -= was["iteration"]
    new.flows[now] = flows
    new.history[now] = old.history[before]
    if len(flows):
        first, count = first_hops[0], int(flows["hops"].sum())
        for name in ("link", "next_link", "queue", "arrived"):
            new.hops[name][first : first + count] = old.hops[name][first - hops : first - hops + count]
    return dict(zip(range(before.start, before.stop), range(now.start, now.stop), strict=True))


def _carry_iteration(old: StepState, new: StepState, was: Any, job: Any) -> None:
    """The iteration that a job is in, and what is due in it."""
    for name in ("pending", "began", "latest"):
        job[name] = was[name]
    for values, into in ((old.noise, new.noise), (old.holds, new.holds)):
        rows = int(was["first_row"] + was["iteration"])
        into[_span(job, "row", "iterations")] = values[rows : rows + int(job["iterations"])]
    before, now = _span(was, "step"), _span(job, "step")
    for name in ("waiting", "pending"):
        new.steps[name][now] = old.steps[name][before]
    first, shift = _first_message(old, was), _first_message(new, job) - _first_message(old, was)
    count = int(old.steps["messages"][before].sum())
    following = old.messages["next"][first : first + count]
    new.messages["next"][first + shift : first + shift + count] = np.where(
        following >= 0, following + shift, following
    )
    items = {item: item - before.start + now.start for item in range(before.start, before.stop)}
    for message in range(first, first + count):
        items[len(old.steps) + message] = len(new.steps) + message + shift
    for item, moved in items.items():
        if old.events.place[item] >= 0:
            put(new.events, moved, int(old.events.due[item]))


def _span(job: Any, kind: str, count: str = "") -> slice:
    first = int(job[f"first_{kind}"])
    return slice(first, first + int(job[count or f"{kind}s"]))


def _first_message(state: StepState, job: Any) -> int:
    return int(state.steps["first_message"][int(job["first_step"])])


def _step_ns(network: Network) -> int:
    """As if some message took the shortest way over two links, and another the fastest link."""
    shortest = sorted(range(len(network.links)), key=lambda number: network.links[number].delay_ns)[:2]
    return default_step_ns(network, [[tuple(shortest)], [tuple(range(len(network.links)))]])
