"""``mltcp-bench contention``: its arguments, its CSV file, and its table or JSON document."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from bench.cli.contest_arguments import add_hosts, add_link, link_of, progress
from bench.compare.approach import PACED, Policy, parse_policy
from bench.compare.report.text import facts_table
from bench.hosts.hosts_file import load_hosts_file
from bench.lab.topology import MAX_JOBS
from bench.sensitivity.contention import (
    RANKS,
    AllReducePlan,
    ContentionResult,
    ContentionRound,
    TestbedSource,
    lab_testbed,
    measure,
    remote_testbed,
)
from bench.tables import Column, console, table_of
from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import BINARY_SIZES, parse_size_bytes
from mltcp.core.subcommands import add_command
from placement.experiments.measurements import as_csv

_EXAMPLES = """\
examples:
  mltcp-bench contention                                    1 to 8 all-reduces at a time, into contention.csv
  mltcp-bench contention -o cubic.csv --control cubic --rate 1gbit --ecn none
  mltcp-bench contention --jobs 1,2,4 --sizes 1M,4M --repeat 10 --json
  mltcp-bench contention --hosts hosts.json --rate 10gbit   on real hosts, by ssh
  mltcp-placement fit contention.csv                        a, b and eta of the contention model

A line of the file is the mean time of k all-reduces that ran at the same time, as `mltcp-placement fit` reads it.
"""
_JOBS = "1..8"
_SIZES = "1M,2M,4M,8M"
_RANGE = re.compile(r"(\d{1,3})(?:\.\.(\d{1,3}))?")
_MAX_SIZE_BYTES = 1 << 30
_ELEMENT_BYTES = 4
# Above this, the jobs may share the processors rather than the link.
_BUSY = 0.8
_FACTS_WIDTH = 110


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``contention`` to the commands."""
    command = add_command(commands, "contention", execute, _EXAMPLES)
    add = command.add_argument
    add(
        "--jobs",
        default=_JOBS,
        metavar="K",
        help=f"concurrent all-reduces: a range or a list (default {_JOBS})",
    )
    add(
        "--sizes", default=_SIZES, metavar="LIST", help=f"of an all-reduce, with K, M or G (default {_SIZES})"
    )
    add("--repeat", type=int, default=5, metavar="N", help="repetitions of everything (default 5)")
    add("--control", default="cubic", metavar="NAME", help="congestion control (default cubic)")
    add_link(command)
    add_hosts(command)
    add(
        "-o",
        "--output",
        type=Path,
        default=Path("contention.csv"),
        metavar="CSV",
        help="file for the measurements (default contention.csv)",
    )
    add("--json", action="store_true", help="one JSON document instead of the table")


def execute(options: argparse.Namespace) -> int:
    """Measure, write the file atomically, and print the result; returns the exit status."""
    plan, testbed = plan_of(options), _arena(options)
    try:
        check_writable(options.output)
    except MltcpError as error:
        raise UsageError(str(error)) from None
    with progress(plan.total, plan.repeat) as step:
        measured = measure(plan, step, testbed)
    try:
        write_atomically(options.output, as_csv(each.measurement for each in measured.rounds).encode())
    except MltcpError as error:
        raise MltcpError(str(error)) from None
    if options.json:
        print(json.dumps(_document(plan, measured, options.output), allow_nan=False))
    else:
        _show(plan, measured, options.output)
    return 0


def _arena(options: argparse.Namespace) -> TestbedSource:
    return lab_testbed if options.hosts is None else remote_testbed(load_hosts_file(options.hosts))


def plan_of(options: argparse.Namespace) -> AllReducePlan:
    """The measurement that the arguments describe. Raises UsageError."""
    if not 1 <= options.repeat <= 10_000:
        raise UsageError(f"--repeat: expected 1 to 10000, got {options.repeat}")
    return AllReducePlan(
        jobs=_numbers_of_jobs(options.jobs),
        sizes_bytes=_sizes(options.sizes),
        repeat=options.repeat,
        link=link_of(options),
        policy=_policy(options.control),
    )


def _numbers_of_jobs(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= MAX_JOBS:
            raise UsageError(
                f"--jobs: expected numbers from 1 to {MAX_JOBS}, as in 1..8 or 1,2,4, got {text!r}"
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = {
        parse_size_bytes(part, field="--sizes", units=BINARY_SIZES, highest=_MAX_SIZE_BYTES)
        for part in text.split(",")
    }
    for size in sizes:
        if size % _ELEMENT_BYTES:
            raise UsageError(f"--sizes: expected multiples of {_ELEMENT_BYTES} bytes, got {size} in {text!r}")
    return tuple(sorted(sizes))


def _policy(name: str) -> Policy:
    if name.partition("@")[0] in PACED:
        raise UsageError(f"--control: expected a congestion control, not pacing, got {name!r}")
    policy = parse_policy(name, "cubic")
    if policy.isolated:
        raise UsageError(f"--control: expected a congestion control, such as cubic, got {name!r}")
    return policy


def _document(plan: AllReducePlan, measured: ContentionResult, output: Path) -> dict[str, Any]:
    return {
        "schema": 1,
        "link": {
            "rate_bps": plan.link.rate_bps,
            "queue_bytes": plan.link.queue_bytes,
            "ecn_threshold_bytes": plan.link.ecn_threshold_bytes,
            "mtu": plan.link.mtu,
        },
        **({"hosts": [asdict(host) for host in measured.hosts]} if measured.hosts else {}),
        "control": plan.policy.name,
        "ranks": RANKS,
        "repeat": plan.repeat,
        "measurements": [
            {
                "jobs": each.jobs,
                "size_bytes": each.size_bytes,
                "repeat": each.repeat,
                "latency_us": each.measurement.latency_us,
                "times_us": list(each.times_us),
            }
            for each in measured.rounds
        ],
        "drops": measured.drops,
        "ecn_marks": measured.marks,
        "cpu_busy": {str(jobs): measured.cpu_busy(jobs) for jobs in plan.jobs},
        "warnings": _warnings(plan, measured),
        "output": str(output),
    }


def _show(plan: AllReducePlan, measured: ContentionResult, output: Path) -> None:
    out = console()
    out.print(_table(plan, measured))
    if measured.hosts:
        out.print()
        facts = facts_table(measured.hosts)
        facts.box = None
        console(_FACTS_WIDTH).print(facts)
    out.print(f"\n{measured.drops} drops, {measured.marks} ECN marks", soft_wrap=True)
    out.print(
        f"{output}: {plan.total} measurements; fit them by: mltcp-placement fit {output}", soft_wrap=True
    )
    for warning in _warnings(plan, measured):
        print(f"mltcp-bench: warning: {warning}", file=sys.stderr)


def _table(plan: AllReducePlan, measured: ContentionResult) -> Table:
    """A row for each k, and for each size the mean time and its ratio to that of the smallest k."""
    columns = [Column[int]("k", str, left=True)]
    for size in plan.sizes_bytes:
        columns.append(Column(f"{size / 1e6:.3g} MB (ms)", partial(_ms, measured, size)))
        columns.append(Column(f"/ k={plan.jobs[0]}", partial(_over_first, measured, size, plan.jobs[0])))
    columns.append(Column("CPU", lambda jobs: f"{measured.cpu_busy(jobs):.0%}"))
    return table_of(plan.jobs, columns)


def _ms(measured: ContentionResult, size: int, jobs: int) -> str:
    return f"{_mean_us(measured.rounds, jobs, size) / 1000:.1f}"


def _over_first(measured: ContentionResult, size: int, first: int, jobs: int) -> str:
    return f"{_mean_us(measured.rounds, jobs, size) / _mean_us(measured.rounds, first, size):.2f}"


def _mean_us(rounds: tuple[ContentionRound, ...], jobs: int, size: int) -> float:
    return fmean(
        each.measurement.latency_us for each in rounds if (each.jobs, each.size_bytes) == (jobs, size)
    )


def _warnings(plan: AllReducePlan, measured: ContentionResult) -> list[str]:
    busiest = max(plan.jobs, key=measured.cpu_busy)
    share = measured.cpu_busy(busiest)
    if share < _BUSY:
        return []
    return [
        f"the processors were {share:.0%} busy with {busiest} at a time: the jobs may have shared them rather than the "
        "link; use a lower --rate or an idle machine"
    ]
