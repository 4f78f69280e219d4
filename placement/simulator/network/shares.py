"""The share mode: jobs in a network whose messages have, at every instant, the rates that their controls converge to.

Rates are weighted max-min fair, with the weight F(bytes_ratio)^e where F is on the increase, and max(1, F)^e where it
is on the decrease: F is that of the law of the sender, bytes_ratio the share of the bytes of its burst that a
connection has sent, and e says how strongly shares follow F. There are no queues, marks or losses. Rates are computed
again when a message begins or ends, and after `hold_ns` where F changes.

The exponents are those of endless flows of constant F: 1 for windows that see the same marks, step by step and in ns-3;
for DCQCN a third on the increase and twice as much for a decrease beside it, packet by packet. DCQCN favours the job
that already sends beyond this, which the share mode does not know: its equal jobs part by themselves, here they do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number
from placement.simulator.exact.event_heap import empty, put
from placement.simulator.network.bursts import burst_places
from placement.simulator.network.class_shares import QUEUE, STRICT, WEIGHTED
from placement.simulator.network.failures import NetworkChange
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.max_min import (
    CONNECTION,
    CORE,
    ENDED,
    JOB,
    LINK,
    MESSAGE,
    PART,
    PLACE,
    STEP,
    WAITS,
    ShareState,
    set_down,
    take_off,
)
from placement.simulator.network.outcome import JobCourse, LinkUse, LostTime, NetworkOutcome
from placement.simulator.network.shares_loop import advance, refill
from placement.simulator.network.topology import CLASSES, Network
from placement.simulator.network.traffic import NetworkJob, RemainingClass, Routes, followers

EXPONENTS: Mapping[Control, tuple[float, float]] = {
    Control.RENO: (1.0, 1.0),
    Control.CUBIC: (1.27, 1.0),
    Control.DCTCP: (1.0, 1.0),
    Control.DCQCN: (0.33, 0.7),
    Control.DELAY: (1.0, 1.0),
    Control.CONSTANT: (0.0, 0.0),
}
"""Of F in the weight of a message, on the increase and on the decrease. Those of DCQCN are fitted to packets
(``python -m tests.network.packets --exponents A``: 0.38 and 0.70; ratios of shares are off by a factor of 1.3, since
they depend on marks and on the number of flows). CUBIC's on the increase is that of the step mode (two endless flows,
without Linux' rule of 32 ms, under which the one with the larger F takes nearly all). Those of DELAY are assumed to be
those of windows, not measured.
"""

PS = 1000
"""In a nanosecond."""

_NOISE, _LOG, _PARTS = 1024, 4096, 1024
_FAR_PS, _DAY_PS = 1 << 62, 86_400 * 10**12


@dataclass(frozen=True)
class ShareSettings:
    """How to run the share mode.

    Attributes:
        seed: of the noise. The k-th iteration of a job has the same noise whatever else happens.
        duration_ns: when to stop, unless all jobs have ended before.
        hold_ns: the longest time that rates are kept while an F changes.
        attributes: whether lost time is attributed to links and neighbours.

    Raises UsageError for values out of range.
    """

    seed: int = 0
    duration_ns: int = 1 << 60
    hold_ns: int = 5_000_000
    attributes: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {self.seed}")
        check_number(self.hold_ns, field="hold_ns", lowest=1, highest=1e15)
        check_number(self.duration_ns, field="duration_ns", lowest=0)


def run_shares(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: ShareSettings = ShareSettings(),
    changes: Sequence[NetworkChange] = (),
) -> NetworkOutcome:
    """Run until the end of the duration, or of all jobs; see `simulate`, which checks its arguments.

    What it does not model, marked and dropped bytes and queues, is NaN in the outcome.

    Raises:
        UsageError: steps that wait for each other in a circle, or an iteration that takes no time.
    """
    alone_ns = _alone_ns(jobs, share_state(network, jobs, routes, settings))
    state, until, log = begun(network, jobs, routes, settings), min(settings.duration_ns * PS, _FAR_PS), []
    for change in changes:
        state, ended = advanced(state, min(change.at_ns * PS, until))
        log.append(ended)
        if change.at_ns * PS >= until or not (
            state.due.size[0] or (state.messages["sending"] == WAITS).any()
        ):
            break
        state.core["now"] = change.at_ns * PS
        state = changed(state, network, change.down, dict(enumerate(change.routes or ())))
    state, ended = advanced(state, until)
    ended = np.concatenate([*log, ended])
    return _outcome(network, jobs, settings, state, ended, alone_ns)


def changed(
    state: ShareState, network: Network, down: Collection[int], routes: Mapping[int, Sequence[Sequence[int]]]
) -> ShareState:
    """The state with links down, and jobs, by number, on other routes; messages that are sent go on there."""
    state = with_room(state)
    for job, ways in routes.items():
        first = int(state.jobs["first_message"][job])
        for number, way in enumerate(ways, first):
            state = _rerouted(state, network, number, way)
    state = with_room(state)
    is_down = np.zeros(len(network.links), np.bool_)
    is_down[list(down)] = True
    set_down(state, is_down)
    refill(state)
    return state


def with_room(state: ShareState) -> ShareState:
    """The state with as many free parts of lost time as messages may need that stop, go on or get other rates now."""
    core = state.core[0]
    while core["attributes"] and core["free_parts"] < core["sending"] * core["most"] + len(state.messages):
        state = state._replace(parts=_grown(state))
    return state


def _rerouted(state: ShareState, network: Network, number: int, way: Sequence[int]) -> ShareState:
    message = state.messages[number]
    first, links = int(message["first"]), int(message["links"])
    if state.places["link"][first : first + links].tolist() == list(way):
        return state
    if message["sending"] == 1:
        take_off(state, number)
    if len(way) > message["room"]:
        first = len(state.places)
        state = state._replace(places=np.concatenate([state.places, np.zeros(len(way), PLACE)]))
        message["first"], message["room"] = first, len(way)
    state.places["link"][first : first + len(way)] = way
    state.places["message"][first : first + len(way)] = number
    message["links"] = len(way)
    message["peak_bps"], message["delay"] = _peak_and_delay(network, way, float(message["most_bps"]))
    message["peak"] = message["peak_bps"] / 8e12
    return state


def begun(
    network: Network, jobs: Sequence[NetworkJob], routes: Routes, settings: ShareSettings
) -> ShareState:
    """The state at the beginning, in which all jobs are due to start."""
    state = share_state(network, jobs, routes, settings)
    for number, job in enumerate(jobs):
        if job.iterations > 0:
            put(state.due, start_item(state, number), job.start_ns * PS)
    return state


def advanced(state: ShareState, until: int) -> tuple[ShareState, np.ndarray]:
    """Advance until a time in picoseconds; returns the state, whose parts may have grown, and the iterations that
    have ended.
    """
    log = []
    done = False
    while not done:
        done = advance(state, until)
        log.append(state.ended[: state.core[0]["logged"]].copy())
        state.core["logged"] = 0
        if not done and state.core[0]["free_parts"] < state.core[0]["sending"] * state.core[0]["most"]:
            state = state._replace(parts=_grown(state))
    return state, np.concatenate(log)


def _grown(state: ShareState) -> np.ndarray:
    core, old = state.core[0], len(state.parts)
    new = np.zeros(old + max(old, int(core["sending"] * core["most"])), PART)
    new[:old] = state.parts
    new["next"][old:] = np.arange(old + 1, len(new) + 1)
    new["next"][-1] = core["free"]
    core["free"] = old
    core["free_parts"] += len(new) - old
    return new


def start_item(state: ShareState, job: int) -> int:
    """The number, in `due`, of the next iteration of a job."""
    return len(state.messages) + len(state.steps) + job


def _alone_ns(jobs: Sequence[NetworkJob], state: ShareState) -> list[float]:
    """The duration of an iteration of each job without the others and without noise: one after the other."""
    state.jobs["iterations"], state.jobs["noise"] = 1, 0.0
    state.core["attributes"] = 0
    found = []
    for number, job in enumerate(jobs):
        state.core["now"] = 0
        put(state.due, start_item(state, number), 0)
        state, ended = advanced(state, _DAY_PS)
        if len(ended) == 0:
            raise UsageError(f"job {job.name}: expected an iteration of at most a day, got a longer one")
        alone = float(ended[0]["ended"] - ended[0]["began"]) / PS
        if alone == 0:
            raise UsageError(
                f"job {job.name}: expected an iteration that takes time, got one that takes none"
            )
        found.append(alone)
    return found


def _outcome(
    network: Network,
    jobs: Sequence[NetworkJob],
    settings: ShareSettings,
    state: ShareState,
    ended: np.ndarray,
    alone_ns: Sequence[float],
) -> NetworkOutcome:
    now = settings.duration_ns * PS if state.due.size[0] else int(state.core[0]["now"])
    order = np.argsort(ended["job"], kind="stable")
    of_jobs = np.split(ended[order], np.searchsorted(ended["job"][order], np.arange(1, len(jobs))))
    courses = tuple(
        JobCourse(job.name, _ns(of_job["began"]), _ns(of_job["ended"]), alone)
        for job, of_job, alone in zip(jobs, of_jobs, alone_ns, strict=True)
    )
    sent = state.links["sent"].copy()
    for message in state.messages[state.messages["sending"] == 1]:
        way = state.places["link"][message["first"] : message["first"] + message["links"]]
        sent[way] += (
            message["size"] - message["passed"] - message["left"] + message["rate"] * (now - message["since"])
        )
    links = tuple(
        LinkUse(link.name, float(bytes_), math.nan, math.nan, math.nan)
        for link, bytes_ in zip(network.links, sent, strict=True)
    )
    lost = lost_time(state, totals(ended, len(jobs))) if settings.attributes else None
    return NetworkOutcome(courses, links, now // PS, lost)


def _ns(picoseconds: np.ndarray) -> np.ndarray:
    return (picoseconds + PS // 2) // PS


def totals(ended: np.ndarray, jobs: int) -> np.ndarray:
    """Of each job, the picoseconds that its iterations took, would have taken unhindered, and waited for."""
    columns = ended["ended"] - ended["began"], ended["unhindered"], ended["waited"]
    return np.array([np.bincount(ended["job"], column, jobs) for column in columns])


def lost_time(state: ShareState, of_jobs: np.ndarray) -> LostTime:
    """The lost time of all iterations that have ended, with their `totals`."""
    rows = []
    for number, first in enumerate(state.jobs["parts"]):
        part = int(first)
        while part >= 0:
            entry = state.parts[part]
            rows.append((number, int(entry["neighbour"]), int(entry["link"]), float(entry["lost"]) / PS))
            part = int(entry["next"])
    job, neighbour, link, lost = zip(*sorted(rows), strict=True) if rows else ((), (), (), ())
    return LostTime(
        np.array(job, np.int64),
        np.array(neighbour, np.int64),
        np.array(link, np.int64),
        np.array(lost, float),
        *(of_jobs / PS),
    )


def _longest_ns(job: NetworkJob) -> int:
    """The longest computing along steps that wait for each other; 0 without steps."""
    steps = job.traffic.steps
    waits = [len(step.after) for step in steps]
    nexts = followers(job.name, steps)
    until = [0] * len(steps)
    ready = [number for number, count in enumerate(waits) if count == 0]
    for number in ready:
        until[number] += steps[number].compute_ns
        for after in nexts[number]:
            until[after] = max(until[after], until[number])
            waits[after] -= 1
            if waits[after] == 0:
                ready.append(after)
    if len(ready) < len(steps) or not steps:
        raise UsageError(
            f"job {job.name}: steps: expected at least one, and none in a circle, got {len(steps)}"
        )
    return max(until)


# -- the state ----------------------------------------------------------------------------------


def share_state(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: ShareSettings,
    *,
    classed: bool = False,
) -> ShareState:
    """The state before the jobs begin; none of them is due. `classed`: traffic classes will matter, if not now."""
    links = _links(network)
    messages, steps, connections, nexts = _work(network, jobs, routes)
    ways = [link for of_job in routes for route in of_job for link in route]
    places = np.zeros(len(ways), PLACE)
    places["link"] = ways
    places["message"] = np.repeat(np.arange(len(messages)), messages["links"])
    core, parts = np.zeros(1, CORE), np.zeros(_PARTS, PART)
    core["hold"], core["attributes"], core["free_parts"] = settings.hold_ns * PS, settings.attributes, _PARTS
    parts["next"] = np.append(np.arange(1, _PARTS), -1)
    core["classed"] = classed or _classes_matter(network, jobs)
    classes = CLASSES if core["classed"] else 1
    bounds = [bound * PS for job in jobs for bound in _bounds_ns(job)]
    levels = empty(classes * len(links) + len(messages))
    return ShareState(
        core=core,
        messages=messages,
        links=links,
        places=places,
        steps=steps,
        jobs=_jobs(jobs, steps, messages),
        connections=connections,
        parts=parts,
        ended=np.zeros(_LOG + len(jobs), ENDED),
        nexts=nexts,
        noise=np.array([job.noise(settings.seed, _NOISE) for job in jobs]),
        plans=np.zeros((len(jobs), 0), np.int64),
        bounds=np.array(bounds, np.int64),
        class_weights=_class_weights(network),
        queues=np.zeros(classes * len(links), QUEUE),
        due=empty(2 * len(messages) + len(steps) + len(jobs)),
        levels=levels._replace(due=np.zeros(len(levels.due))),
        seeds=np.zeros(len(messages), np.int64),
        group=np.zeros(len(messages), np.int64),
        group_links=np.zeros(len(links), np.int64),
    )


def _links(network: Network) -> np.ndarray:
    links = np.zeros(len(network.links), LINK)
    links["rate_bps"] = [link.rate_bps for link in network.links]
    links["rate"] = links["rate_bps"] / 8e12
    links["head"] = -1
    links["queues"] = [
        0 if link.classes is None else WEIGHTED if link.classes.weights else STRICT for link in network.links
    ]
    return links


def _class_weights(network: Network) -> np.ndarray:
    equal = (1.0,) * CLASSES
    rows = [link.classes.weights or equal if link.classes else equal for link in network.links]
    return np.array(rows, float).reshape(-1, CLASSES)


def _classes_matter(network: Network, jobs: Sequence[NetworkJob]) -> bool:
    """Whether links have queues for classes, and messages different classes."""
    classes = {job.traffic_class for job in jobs}
    return any(link.classes for link in network.links) and (
        len(classes) > 1 or isinstance(next(iter(classes)), RemainingClass)
    )


def _bounds_ns(job: NetworkJob) -> tuple[int, ...]:
    return job.traffic_class.bounds_ns if isinstance(job.traffic_class, RemainingClass) else ()


def _work(
    network: Network, jobs: Sequence[NetworkJob], routes: Routes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The records of messages, steps and connections, and the steps that wait for each step."""
    messages: list[tuple] = []
    steps: list[tuple] = []
    connections: list[float] = []
    laws: list[NetworkLaw] = []
    nexts: list[int] = []
    place = 0
    for number, (job, of_job) in enumerate(zip(jobs, routes, strict=True)):
        first_step = len(steps)
        known: dict[tuple[int, int, int], int] = {}
        routes_left, places = iter(of_job), iter(burst_places(job, network, of_job))
        after = followers(job.name, job.traffic.steps)
        for step in job.traffic.steps:
            waiting = after[len(steps) - first_step]
            head = (number, step.compute_ns * PS, len(messages), len(step.messages), len(step.after))
            for message in step.messages:
                pair = (message.source, message.target, message.connection)
                burst = next(places)
                connection = known.setdefault(pair, len(connections))
                if connection == len(connections):
                    connections.append(0.0)
                    laws.append(job.law_of(message.source))
                    for name, is_there in (("fair=job", laws[-1].fair), ("reference=", laws[-1].reference_s)):
                        if is_there:
                            raise UsageError(f"job {job.name}: {name}: expected in the mode steps only")
                connections[connection] += message.size_bytes
                way = next(routes_left)
                own_bps = min(_most_bps(laws[connection]) if way else math.inf, step.rate_bps)
                peak_bps, delay = _peak_and_delay(network, way, own_bps)
                messages.append(
                    (
                        number,
                        len(steps),
                        connection,
                        place,
                        len(way),
                        len(way),
                        message.size_bytes,
                        delay,
                        peak_bps,
                        own_bps,
                        burst.size_bytes,
                        burst.before_bytes,
                    )
                )
                place += len(way)
            steps.append((*head, len(nexts), len(waiting)))
            nexts.extend(first_step + other for other in waiting)
    records = _filled(
        MESSAGE,
        (
            *("job", "step", "connection", "first", "links", "room"),
            *("size", "delay", "peak_bps", "most_bps", "burst_bytes", "burst_before"),
        ),
        messages,
    )
    records["peak"] = records["peak_bps"] / 8e12
    for name in ("full", "waited", "behind", "parts", "down"):
        records[name] = -1
    of_connections = _filled(
        CONNECTION,
        ("total", "tail", "shape", "slope", "intercept", "increase", "decrease"),
        [(total, -1, *_weight(law)) for total, law in zip(connections, laws, strict=True)],
    )
    of_steps = _filled(STEP, ("job", "compute", "first", "messages", "waits", "first_next", "nexts"), steps)
    return records, of_steps, of_connections, np.array(nexts, np.int64)


def _peak_and_delay(network: Network, way: Sequence[int], most_bps: float) -> tuple[float, int]:
    """The rate that a message has alone on a way, and the propagation there in picoseconds."""
    links = [network.links[link] for link in way]
    peak_bps = min((link.rate_bps for link in links), default=math.inf)
    return min(peak_bps, most_bps), sum(link.delay_ns for link in links) * PS


def _filled(record: np.dtype, names: Sequence[str], rows: Sequence[tuple]) -> np.ndarray:
    records = np.zeros(len(rows), record)
    for name, column in zip(names, zip(*rows, strict=True), strict=bool(rows)):
        records[name] = column
    return records


def _most_bps(law: NetworkLaw) -> float:
    """The rate at which a constant rate sends."""
    return law.values["rate_bps"] if law.control is Control.CONSTANT else math.inf


def _weight(law: NetworkLaw) -> tuple[int, float, float, float, float]:
    """F of a law, and its exponents: the fields of a connection."""
    f, (on_increase, on_decrease) = law.aggressiveness, EXPONENTS[law.control]
    return int(f.shape), f.slope, f.intercept, on_increase * law.increase, on_decrease * law.decrease


def _jobs(jobs: Sequence[NetworkJob], steps: np.ndarray, messages: np.ndarray) -> np.ndarray:
    records = np.zeros(len(jobs), JOB)
    bounds = 0
    for number, (record, job) in enumerate(zip(records, jobs, strict=True)):
        longest = _longest_ns(job)
        record["noise"] = 1 / longest if longest else 0.0
        record["iterations"], record["parts"] = job.iterations, -1
        record["first_step"], record["steps"] = _span(steps["job"], number)
        record["first_message"], record["messages"] = _span(messages["job"], number)
        record["first_bound"], record["bounds"] = bounds, len(_bounds_ns(job))
        bounds += len(_bounds_ns(job))
        if not isinstance(job.traffic_class, RemainingClass):
            record["priority"] = job.traffic_class
        own = messages["connection"][record["first_message"] : record["first_message"] + record["messages"]]
        if len(own):
            record["first_connection"], record["connections"] = own.min(), own.max() - own.min() + 1
    return records


def _span(owners: np.ndarray, number: int) -> tuple[int, int]:
    """The first of the places that a number has in a sorted array, and how many it has."""
    first, last = np.searchsorted(owners, (number, number + 1))
    return int(first), int(last - first)
