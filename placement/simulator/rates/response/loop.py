"""The loop of a compiled run: between arrivals and ends, every job advances at the speed of its nodes."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.response.division import divide
from placement.simulator.rates.response.state import DONE, Jobs, Present, Rule, Tables

_NEVER = float("inf")


@compiled_with_arrays
def run(rule: Rule, tables: Tables, jobs: Jobs, present: Present, nodes: int) -> tuple[bool, int, int, float]:
    """Run until all jobs have ended.

    Returns:
        Whether all ended, the most jobs present at a time, those present after the last arrival, and the integral of
        the number present over time.
    """
    total = len(jobs.arrival)
    now, area = 0.0, 0.0
    count, arrived, ended, most, at_last = 0, 0, 0, 0, 0
    while ended < total:
        step, first = next_end(tables, present, count)
        arrives = arrived < total and jobs.arrival[arrived] <= now + step
        if arrives:
            step = jobs.arrival[arrived] - now
        elif step == _NEVER:
            return False, most, at_last, area
        area += step * count
        advance(tables, jobs, present, count, now, step)
        if arrives:
            now = jobs.arrival[arrived]
        else:
            now += step
            present.left[first] = 0.0
        still = remove_done(jobs, present, count, now)
        ended += count - still
        count = still
        if arrives:
            add(jobs, present, count, arrived)
            arrived += 1
            count += 1
            most = max(most, count)
            if arrived == total:
                at_last = count
        divide(rule, tables, present, count, nodes)
    return True, most, at_last, area


@compiled_with_arrays
def next_end(tables: Tables, present: Present, count: int) -> tuple[float, int]:
    """The time until the next end, and the position of the job that ends; the first of equals."""
    shortest, first = _NEVER, -1
    for position in range(count):
        speed = tables.speed[present.model[position], present.nodes[position]]
        if speed > 0.0 and present.left[position] / speed < shortest:
            shortest, first = present.left[position] / speed, position
    return shortest, first


@compiled_with_arrays
def advance(tables: Tables, jobs: Jobs, present: Present, count: int, now: float, step: float) -> None:
    """Let all jobs run for a time; notes when a job passes the share that is asked about."""
    for position in range(count):
        speed = tables.speed[present.model[position], present.nodes[position]]
        before, after = present.left[position], present.left[position] - speed * step
        mark = (1.0 - jobs.share) * present.size[position]
        if before > mark >= after:
            jobs.part[present.number[position]] = now + (before - mark) / speed
        present.left[position] = max(after, 0.0)


@compiled_with_arrays
def remove_done(jobs: Jobs, present: Present, count: int, now: float) -> int:
    """End the jobs that are done; returns how many are left."""
    kept = 0
    for position in range(count):
        if present.left[position] <= DONE * present.size[position]:
            number = present.number[position]
            jobs.end[number] = now
            jobs.part[number] = min(jobs.part[number], now)
            continue
        present.number[kept] = present.number[position]
        present.model[kept] = present.model[position]
        present.size[kept] = present.size[position]
        present.left[kept] = present.left[position]
        present.nodes[kept] = present.nodes[position]
        kept += 1
    return kept


@compiled_with_arrays
def add(jobs: Jobs, present: Present, count: int, number: int) -> None:
    """Add a job that arrives."""
    present.number[count] = number
    present.model[count] = jobs.model[number]
    present.size[count] = present.left[count] = jobs.size[number]
    present.nodes[count] = 0
