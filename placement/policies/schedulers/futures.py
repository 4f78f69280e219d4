"""Possible futures of the queue, compiled: EDF on efficient numbers of GPUs, until every job has started or is late.

Times are whole ns. A job is a row of the tables of options, by ascending numbers of GPUs; the base rule takes the first
option that is in time, and starts the job with the earliest deadline whose option fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.deadlines.decide import take
from placement.policies.schedulers.deadlines.rules import NEVER

WAIT = -1
"""The choice to start no job before the next arrival or end."""

_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
_SHIFT, _UNIT = np.uint64(33), float(1 << 31)


class Options(NamedTuple):
    """The options of each row.

    Attributes:
        gpus: their numbers, per row and option; 0 beyond the last.
        run: the run times.
        cross: whether across nodes.
    """

    gpus: np.ndarray
    run: np.ndarray
    cross: np.ndarray


class Queue(NamedTuple):
    """Jobs with deadlines.

    Attributes:
        arrival: when they come.
        deadline: T_dl.
        row: their options.
    """

    arrival: np.ndarray
    deadline: np.ndarray
    row: np.ndarray


class Machines(NamedTuple):
    """The nodes, and the jobs that run.

    Attributes:
        free: GPUs per node.
        end: per running job.
        held: GPUs per running job and node.
    """

    free: np.ndarray
    end: np.ndarray
    held: np.ndarray


@compiled_with_arrays
def draw(
    now: int, horizon: int, rate: float, seen: Queue, seed: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrivals of one future: a Poisson process of the jobs that were seen.

    Args:
        now: the time.
        horizon: for which jobs arrive.
        rate: jobs a ns.
        seen: jobs that arrived, of which each arrival is one.
        seed: of the draws.
        most: arrivals at most.
    """
    arrival = np.zeros(most, np.int64)
    deadline = np.zeros(most, np.int64)
    row = np.zeros(most, np.int64)
    state = np.uint64(seed)
    time, count = float(now), 0
    while len(seen.row) > 0 and count < most:
        state = state * _MULTIPLIER + _INCREMENT
        time -= np.log((float(state >> _SHIFT) + 1.0) / (_UNIT + 1.0)) / rate
        if time > now + horizon:
            break
        state = state * _MULTIPLIER + _INCREMENT
        chosen = int(float(state >> _SHIFT) / _UNIT * len(seen.row))
        arrival[count] = int(time)
        deadline[count] = int(time) + seen.deadline[chosen] - seen.arrival[chosen]
        row[count] = seen.row[chosen]
        count += 1
    return arrival[:count], deadline[:count], row[:count]


@compiled_with_arrays
def met_after(
    now: int, waits: bool, options: Options, machines: Machines, queue: Queue, future: Queue
) -> int:
    """The number of jobs that start in time, of those that wait and of those to come.

    Args:
        now: the time.
        waits: whether no job starts before the next arrival or end.
        options: of all rows.
        machines: the cluster; is not changed.
        queue: jobs that wait.
        future: jobs to come.
    """
    nodes, waiting, running, come, met = len(machines.free), len(queue.row), len(machines.end), 0, 0
    free = machines.free.copy()
    most = free.sum() + machines.held.sum() + 1
    end = np.zeros(most, np.int64)
    held = np.zeros((most, nodes), np.int64)
    end[:running], held[:running] = machines.end, machines.held
    deadline = np.zeros(waiting + len(future.row), np.int64)
    row = np.zeros(waiting + len(future.row), np.int64)
    deadline[:waiting], row[:waiting] = queue.deadline, queue.row
    while True:
        while not waits:
            position, option = -1, 0
            largest, total = free.max(), free.sum()
            if total == 0:
                break
            each = 0
            while each < waiting:
                found = in_time(options, row[each], deadline[each] - now)
                if found < 0:  # late from now on
                    waiting -= 1
                    deadline[each], row[each] = deadline[waiting], row[waiting]
                    continue
                wanted = options.gpus[row[each], found]
                fits = wanted <= (total if options.cross[row[each], found] else largest)
                if fits and (position < 0 or deadline[each] < deadline[position]):
                    position, option = each, found
                each += 1
            if position < 0:
                break
            number = row[position]
            take(free, options.gpus[number, option], options.cross[number, option], held[running])
            end[running] = now + options.run[number, option]
            running += 1
            met += 1
            waiting -= 1
            deadline[position], row[position] = deadline[waiting], row[waiting]
        waits = False
        now = future.arrival[come] if come < len(future.row) else NEVER
        if now == NEVER and waiting == 0:
            return met
        for each in range(running):
            now = min(now, end[each])
        if now == NEVER:
            return met
        each = 0
        while each < running:
            if end[each] > now:
                each += 1
                continue
            running -= 1
            for node in range(nodes):
                free[node] += held[each, node]
                held[each, node] = held[running, node]
            end[each] = end[running]
        while come < len(future.row) and future.arrival[come] <= now:
            deadline[waiting], row[waiting] = future.deadline[come], future.row[come]
            waiting += 1
            come += 1


@compiled_with_arrays
def in_time(options: Options, row: int, slack: int) -> int:
    """The first option of a row that takes no longer than a time; -1 if there is none."""
    for option in range(options.gpus.shape[1]):
        if options.gpus[row, option] > 0 and options.run[row, option] <= slack:
            return option
    return -1


@compiled_with_arrays
def best_choice(
    now: int,
    horizon: int,
    rate: float,
    futures: int,
    most: int,
    margin: float,
    options: Options,
    machines: Machines,
    queue: Queue,
    seen: Queue,
    choices: np.ndarray,
) -> int:
    """Of some choices the one after which the most jobs start in time in the mean of all futures; the first of equals.

    Args:
        now: the time.
        horizon: for which jobs arrive in a future.
        rate: of arrivals, jobs a ns.
        futures: their number.
        most: arrivals of a future, at most.
        margin: jobs by which another choice has to be better than the first.
        options: of all rows.
        machines: the cluster.
        queue: jobs that wait.
        seen: jobs of which the futures are made.
        choices: positions in the queue, each to be started now, or `WAIT`.
    """
    totals = np.zeros(len(choices))
    free = machines.free.copy()
    running = len(machines.end)
    end = np.zeros(running + 1, np.int64)
    held = np.zeros((running + 1, len(free)), np.int64)
    end[:running], held[:running] = machines.end, machines.held
    others = np.zeros(len(queue.row), np.int64)
    for number in range(futures):
        arrival, deadline, rows = draw(now, horizon, rate, seen, number + 1, most)
        future = Queue(arrival, deadline, rows)
        for index in range(len(choices)):
            position = choices[index]
            if position == WAIT:
                totals[index] += met_after(now, True, options, machines, queue, future)
                continue
            count = 0
            for each in range(len(others)):
                if each != position:
                    others[count] = each
                    count += 1
            row = queue.row[position]
            option = in_time(options, row, queue.deadline[position] - now)
            free[:] = machines.free
            take(free, options.gpus[row, option], options.cross[row, option], held[running])
            end[running] = now + options.run[row, option]
            rest = Queue(
                queue.arrival[others[:count]], queue.deadline[others[:count]], queue.row[others[:count]]
            )
            totals[index] += 1 + met_after(now, False, options, Machines(free, end, held), rest, future)
    totals[0] += margin * futures
    best = 0
    for index in range(1, len(choices)):
        if totals[index] > totals[best] + 1e-9:
            best = index
    return best
