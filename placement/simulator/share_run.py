"""The share mode for jobs that come and go: a simulation that is advanced to a time, and that jobs join and leave.

A gate may decide when a job sends: whenever jobs ask for their links, or give them back, those that ask are looked at
in the order of what they have left to compute, as in `placement.gate`.

Each job has a place in the arrays from the beginning, as large as the widest of its iterations; when it starts, its
steps, messages and routes are written there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.compiled import compiled
from placement.policies.gate_state import GateState
from placement.simulator.exact.event_heap import EventHeap, drop, put
from placement.simulator.fluid import Iterations
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.max_min import (
    PLACE,
    PLANNED,
    ShareState,
    enter,
    leave,
    plant,
    settle,
    take_off,
)
from placement.simulator.network.outcome import LinkUse, LostTime
from placement.simulator.network.routing import Route
from placement.simulator.network.shares import (
    PS,
    ShareSettings,
    advanced,
    changed,
    lost_time,
    share_state,
    start_item,
    totals,
    with_room,
)
from placement.simulator.network.shares_loop import drop_parts, may_send, refill
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob, RemainingClass, Traffic


class ShareRun:
    """A simulation of jobs, numbered from 0, in the mode `shares`; times are in ns since its beginning.

    Args:
        network: hosts and links.
        widest: of each job, by name, the largest traffic that it may start with.
        laws: of the flows of each job.
        settings: their duration has no meaning.
        gate: decides when a job sends; None: nothing does.
        traffic_class: of all messages at first; None: classes do not matter, and `steer` changes none.
    """

    def __init__(
        self,
        network: Network,
        widest: Sequence[tuple[str, Traffic]],
        laws: Sequence[NetworkLaw],
        settings: ShareSettings,
        gate: GateState | None = None,
        traffic_class: int | RemainingClass | None = None,
    ) -> None:
        self._network, self._laws, self._settings, self._gate = network, laws, settings, gate
        self._class = 0 if traffic_class is None else traffic_class
        jobs = [
            NetworkJob(name, traffic, (0,) * traffic.workers, law, 0, traffic_class=self._class)
            for (name, traffic), law in zip(widest, laws, strict=True)
        ]
        unplaced = [[()] * len(traffic.messages) for _, traffic in widest]
        self._state = share_state(network, jobs, unplaced, settings, classed=traffic_class is not None)
        self._state.core["stops"] = 1
        self._room = self._state.jobs.copy()
        self._first_next = [int(self._state.steps["first_next"][job["first_step"]]) for job in self._room]
        self._silence, self._workers = np.zeros(len(jobs)), [1] * len(jobs)
        self._ways: list[tuple[int, int]] = [(0, 0)] * len(jobs)
        self._log: list[np.ndarray] = []
        self._totals = np.zeros((3, len(jobs)))
        self._down: Collection[int] = ()

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return float(self._state.core["now"][0]) / PS

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
        """Start a job that does not run, for `iterations` more.

        Args:
            number: of the job.
            job: its traffic is no larger than its widest in steps, messages, connections and what waits for what.
            routes: of its messages.
            silence_ns: the time from the beginning of an iteration to its first message, as it is known of the job.
            hold_ns: the delay of the first iteration, which is no part of its duration.
            delay_ns: its delay that is a part of it; see `delay`.
            done: the iterations that it has done, which decide its noise; None: those that it has done here.

        Raises:
            UsageError: the job runs already, or its traffic has no room.
        """
        record = self._state.jobs[number]
        if self.runs(number):
            raise UsageError(f"job {job.name} runs already")
        job = replace(job, law=self._laws[number], traffic_class=self._class)
        own = share_state(self._network, [job], [routes], self._settings)
        self._place(number, own)
        done = int(record["number"]) if done is None else done
        for name in self._state.jobs.dtype.names:
            if name not in ("first_step", "first_message", "first_connection", "first_bound", "parts"):
                record[name] = own.jobs[0][name]
        record["number"], record["iterations"] = done, done + job.iterations
        self._state.noise[number] = own.noise[0]
        self._silence[number], self._workers[number] = silence_ns, job.traffic.workers
        if self._down:
            self._state = changed(self._state, self._network, self._down, {})
        record["held"] = round(delay_ns * PS)
        begins = int(self._state.core["now"][0]) + round(hold_ns * PS) + int(record["held"])
        put(self._state.due, start_item(self._state, number), begins)
        links = sorted({link for route in routes for link in route})
        if self._gate is not None and links:
            record["gated"] = 1
            self._gate.put(number, [self._network.links[link].name for link in links])

    def stop(self, number: int) -> None:
        """End a job; its current iteration is lost."""
        if self._gate is not None and self._state.jobs["gated"][number]:
            if self._gate.is_running(number):
                self._gate.stop(number, int(self.now_ns))
            self._gate.remove(number)
        self._state = with_room(self._state)
        remove_job(self._state, number)
        if self._gate is not None:
            self._serve()

    def steer(self, number: int, routes: Sequence[Route] | None, traffic_class: int = 0) -> None:
        """Let a job that runs send over other routes, and in another class, from now on.

        Args:
            number: of the job.
            routes: of its messages, none longer than the one that it has; None: those that it has.
            traffic_class: of its messages, unless it follows from what they have left.

        Raises:
            UsageError: a route is longer, or not one for each message.
        """
        self._state = with_room(self._state)
        record = self._state.jobs[number]
        if routes is not None:
            own = slice(int(record["first_message"]), int(record["first_message"] + record["messages"]))
            lengths = np.array([len(route) for route in routes], np.int64)
            if len(lengths) != record["messages"] or (lengths > self._state.messages["links"][own]).any():
                raise UsageError(
                    f"job {number}: routes: expected {record['messages']}, none longer than before"
                )
            ways = np.array([link for route in routes for link in route], np.int64)
            delays = [sum(self._network.links[link].delay_ns for link in route) * PS for route in routes]
            reroute_job(self._state, number, lengths, ways, np.array(delays, np.int64))
        if record["bounds"] == 0 and record["priority"] != traffic_class:
            prioritise_job(self._state, number, traffic_class)
        refill(self._state)

    def plan_sends(self, number: int, sends_ns: Sequence[float]) -> None:
        """Let each of a job's next iterations send no sooner than at its time, those after them when they can.

        Args:
            number: of the job.
            sends_ns: of its iterations from the first one that has not sent yet.
        """
        record = self._state.jobs[number]
        if self._state.plans.shape[1] < len(sends_ns):
            plans = np.zeros((len(self._room), len(sends_ns)), np.int64)
            plans[:, : self._state.plans.shape[1]] = self._state.plans
            self._state = self._state._replace(plans=plans)
        self._state.plans[number, : len(sends_ns)] = np.round(np.array(sends_ns, float) * PS)
        record["planned"] = len(sends_ns)
        record["plan"] = self.done(number) + (self.sending_since_ns(number) is not None)
        replan_job(self._state, number)

    def began_ns(self, number: int) -> float:
        """When the present iteration of a job that runs began or is to begin, after its delay."""
        begins = start_item(self._state, number)
        if self._state.due.place[begins] >= 0:
            return float(self._state.due.due[begins]) / PS
        record = self._state.jobs[number]
        return float(record["began"] + record["shifted"]) / PS

    def sending_since_ns(self, number: int) -> float | None:
        """When the present iteration of a job that runs began to send; None: it has not."""
        record = self._state.jobs[number]
        if record["is_silent"] or self._state.due.place[start_item(self._state, number)] >= 0:
            return None
        return float(record["first_sent"]) / PS

    def change_links(self, down: Collection[int], routes: Mapping[int, Sequence[Route]]) -> None:
        """Let links be down, by number, and jobs go on over other routes; see `failures`."""
        self._down = down
        self._state = changed(self._state, self._network, down, routes)

    @property
    def is_still(self) -> bool:
        """Whether nothing will happen any more: there are no jobs, or all of them wait for links that are down."""
        return not self._state.due.size[0]

    def delay(self, number: int, by_ns: float) -> None:
        """Delay the start of a job's next iteration, once."""
        self._state.jobs["delay"][number] += round(by_ns * PS)

    def run(self, until_ns: float) -> tuple[int, ...]:
        """Advance until a time, or until jobs have done all of their iterations; returns these jobs."""
        core, until = self._state.core, round(until_ns * PS)
        running = self._running()
        calls = True
        while calls:
            core["finished"] = core["calls"] = 0
            self._state, iterations = advanced(self._state, until)
            self._log.append(iterations)
            if self._settings.attributes:
                self._totals += totals(iterations, len(self._room))
            calls = bool(core["calls"][0])
            if calls:
                self._serve()
            if core["finished"][0]:
                break
        else:
            core["now"] = max(int(core["now"][0]), until)
            return ()
        ended = tuple(int(each) for each in np.flatnonzero(running & ~self._running()))
        for number in ended:
            if self._gate is not None and self._state.jobs["gated"][number]:
                self._gate.remove(number)
        return ended

    def done(self, number: int) -> int:
        """The iterations that the job has done, those before its last start included."""
        return int(self._state.jobs["number"][number])

    def plan(self, number: int, left: int) -> None:
        """Let a job that runs end after so many iterations more, its current one included."""
        self._state.jobs["iterations"][number] = self.done(number) + left

    def delay_left_ns(self, number: int) -> float:
        """Of a job that has ended, the delay that no iteration has had."""
        return float(self._state.jobs["delay"][number]) / PS

    def kept(self) -> tuple[ShareState, list[np.ndarray], np.ndarray]:
        """What `restore` goes back to from a later `run`."""
        return ShareState(*map(_copied, self._state)), self._log.copy(), self._totals.copy()

    def restore(self, kept: tuple[ShareState, list[np.ndarray], np.ndarray]) -> None:
        """Go back to what `kept` returned; nothing but `run` may have been called since."""
        self._state, self._log, self._totals = kept

    def runs(self, number: int) -> bool:
        """Whether the job has iterations left."""
        return bool(self._running()[number])

    def iterations_left(self, number: int) -> int:
        """The iterations that the job has left."""
        record = self._state.jobs[number]
        return int(record["iterations"] - record["number"])

    def reference_ns(self, number: int) -> float | None:
        """The start of its last iteration, derived from its first message, as an agent sees it.

        None before the first one after a start or a delay, and while a delay is still to come.
        """
        record = self._state.jobs[number]
        if not self.runs(number) or not record["told"] or record["delay"]:
            return None
        return float(record["first_sent"]) / PS - float(self._silence[number])

    def iterations(self) -> dict[int, Iterations]:
        """The iterations of each job that ended since the last call, without marks."""
        log = np.concatenate(self._log) if self._log else self._state.ended[:0]
        self._log = []
        found = {}
        for number in np.unique(log["job"]):
            own = log[log["job"] == number]
            began_ns, ended_ns = own["began"] / PS, own["ended"] / PS
            found[int(number)] = Iterations(began_ns, ended_ns, np.full(len(own), np.nan))
        return found

    @property
    def lost_time(self) -> LostTime | None:
        """Of all iterations that have ended, those of earlier starts included; None unless it is attributed."""
        return lost_time(self._state, self._totals) if self._settings.attributes else None

    def links(self) -> tuple[LinkUse, ...]:
        """What each link has carried in messages that have ended."""
        nan = float("nan")
        return tuple(
            LinkUse(link.name, float(sent), nan, nan, nan)
            for link, sent in zip(self._network.links, self._state.links["sent"], strict=True)
        )

    def _serve(self) -> None:
        """Let the gate take note of what has been sent, and grant what it can."""
        assert self._gate is not None, "no job is gated without one"
        jobs, now = self._state.jobs, int(self.now_ns)
        for number in np.flatnonzero(jobs["gives_back"]).tolist():
            jobs["gives_back"][number] = 0
            self._gate.stop(number, now)
        for number in sorted(
            np.flatnonzero(jobs["asks"]).tolist(), key=lambda each: (self._service_left(each), each)
        ):
            size = self._asked_bytes(number)
            if self._gate.may_start(number, size, now):
                self._gate.start(number, size, now)
                self._gate.move(number, now)
                grant_job(self._state, number)

    def _steps_of(self, number: int) -> np.ndarray:
        record = self._state.jobs[number]
        return self._state.steps[record["first_step"] : record["first_step"] + record["steps"]]

    def _service_left(self, number: int) -> int:
        """What all workers of a job have left to compute, in picoseconds: the rank of SRSF."""
        return (
            self.iterations_left(number)
            * int(self._steps_of(number)["compute"].sum())
            * self._workers[number]
        )

    def _asked_bytes(self, number: int) -> int:
        """What a job asks to send over each of its links: its largest message."""
        asking = self._steps_of(number)
        asking = asking[asking["asks"] == 1]
        messages = self._state.messages
        return sum(
            int(messages["size"][step["first"] : step["first"] + step["messages"]].max()) for step in asking
        )

    def _running(self) -> np.ndarray:
        return np.asarray(self._state.jobs["iterations"] > self._state.jobs["number"])

    def _place(self, number: int, own: ShareState) -> None:
        """Write the steps and messages of a job that was built alone into its place."""
        state, room = self._state, self._room[number]
        nexts = self._first_next[number]
        following = self._first_next[number + 1] if number + 1 < len(self._room) else len(state.nexts)
        for name, wanted, most in (
            ("steps", len(own.steps), room["steps"]),
            ("messages", len(own.messages), room["messages"]),
            ("connections", len(own.connections), room["connections"]),
            ("steps that wait", len(own.nexts), following - nexts),
        ):
            if wanted > most:
                raise UsageError(f"job {number}: {name}: expected at most {most}, got {wanted}")
        step, message, connection = (
            int(room[name]) for name in ("first_step", "first_message", "first_connection")
        )
        place = self._way(number, own.places["link"])
        own.steps["job"] = own.messages["job"] = number
        own.steps["first"] += message
        own.steps["first_next"] += nexts
        own.messages["step"] += step
        own.messages["connection"] += connection
        own.messages["first"] += place
        self._state.places["message"][place : place + len(own.places)] = own.places["message"] + message
        state.steps[step : step + len(own.steps)] = own.steps
        state.messages[message : message + len(own.messages)] = own.messages
        state.connections[connection : connection + len(own.connections)] = own.connections
        state.nexts[nexts : nexts + len(own.nexts)] = own.nexts + step

    def _way(self, number: int, links: np.ndarray) -> int:
        """The first of the places of a job's messages on their links; where it had less room, at the end."""
        first, room = self._ways[number]
        if room < len(links):
            first, room = len(self._state.places), len(links)
            more = np.zeros(room, PLACE)
            self._state = self._state._replace(places=np.concatenate([self._state.places, more]))
            self._ways[number] = first, room
        self._state.places["link"][first : first + len(links)] = links
        return first


def _copied(part: Any) -> Any:
    return EventHeap(*map(np.copy, part)) if isinstance(part, EventHeap) else part.copy()


@compiled
def remove_job(state: ShareState, number: int) -> None:
    """Take all that a job does, and is due to do, out of the simulation."""
    job = state.jobs[number]
    for place in range(job.first_message, job.first_message + job.messages):
        message = state.messages[place]
        if message.sending == 1:
            take_off(state, place)
        message.sending = 0
    for step in range(job.first_step, job.first_step + job.steps):
        drop(state.due, len(state.messages) + step)
        state.steps[step].asks = 0
    for connection in range(job.first_connection, job.first_connection + job.connections):
        state.connections[connection].tail = -1
    drop(state.due, len(state.messages) + len(state.steps) + number)
    drop_parts(state, job)
    job.iterations = job.number
    job.asks = job.granted = job.gives_back = job.steps_sending = 0
    refill(state)


@compiled
def grant_job(state: ShareState, number: int) -> None:
    """Let the steps of a job that ask send now."""
    job = state.jobs[number]
    job.asks, job.granted = 0, 1
    for step in range(job.first_step, job.first_step + job.steps):
        if state.steps[step].asks:
            state.steps[step].asks = 0
            put(state.due, len(state.messages) + step, state.core[0].now)


@compiled
def replan_job(state: ShareState, number: int) -> None:
    """Let the steps of a job that wait for their time wait for that of its new plan."""
    job = state.jobs[number]
    for step in range(job.first_step, job.first_step + job.steps):
        if state.steps[step].asks == PLANNED:
            put(state.due, len(state.messages) + step, max(may_send(state, number), state.core[0].now))


@compiled
def reroute_job(
    state: ShareState, number: int, lengths: np.ndarray, ways: np.ndarray, delays: np.ndarray
) -> None:
    """Let the messages of a job use other links, also those that are being sent: what they have left goes there.

    Args:
        state: of the simulation.
        number: of the job.
        lengths: of the route of each message, no more than it has.
        ways: the links of all routes, one after the other.
        delays: of each route, in picoseconds.
    """
    job = state.jobs[number]
    end = 0
    for each in range(job.messages):
        place = job.first_message + each
        message = state.messages[place]
        first, end = end, end + lengths[each]
        same = message.links == lengths[each]
        for hop in range(lengths[each]):
            same = same and state.places[message.first + hop].link == ways[first + hop]
        if same:
            continue
        if message.sending:
            settle(state, place)
            leave(state, place)
            drop(state.due, place)
            for hop in range(message.links):
                state.links[state.places[message.first + hop].link].sent -= message.left
            message.passed_in += (message.size - message.left - message.passed) / message.peak
            message.passed = message.size - message.left
        message.links = lengths[each]
        message.delay = delays[each]
        message.peak_bps = message.most_bps
        for hop in range(lengths[each]):
            link = state.links[ways[first + hop]]
            state.places[message.first + hop].link = ways[first + hop]
            message.peak_bps = min(message.peak_bps, link.rate_bps)
        message.peak = message.peak_bps / 8e12
        if message.sending:
            enter(state, place)


@compiled
def prioritise_job(state: ShareState, number: int, priority: int) -> None:
    """Give the messages of a job another traffic class, also those that are being sent."""
    job = state.jobs[number]
    job.priority = priority
    for place in range(job.first_message, job.first_message + job.messages):
        if state.messages[place].sending:
            state.messages[place].priority = priority
            plant(state, place)
