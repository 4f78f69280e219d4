"""``mltcp-bench soak``: random clients and faults against the daemon and the placement service."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from bench.soak.soak import SoakPlan, SoakResult, soak
from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar

_EXAMPLES = """\
examples:
  mltcp-bench soak                            five minutes
  mltcp-bench soak --minutes 30 --seed 7      half an hour, with other choices
  mltcp-bench soak --minutes 1 --fault-every 2 --json

In a network namespace of its own: mltcpd, and a placement service with an engine; where Slurm is installed, a private
cluster beside them, and a service that places its jobs. Processes of several users use all of them well and badly, and
a third of them is killed; each program is killed, ended and frozen, a disk is full, an interface goes and comes back,
ranks and launchers die. The exit status is 1 if an invariant did not hold: a status within a second at every moment, no
acknowledged submission lost or run twice, no job ended or changed by another's doing, no GPU given twice, no right of a
user overstepped; at the end no job and no process left, no more descriptors and memory than at a start, and the host as
before.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``soak`` to the commands."""
    command = commands.add_parser(
        "soak", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--minutes", type=float, default=5.0, metavar="N", help="default %(default)s")
    command.add_argument(
        "--fault-every", type=float, default=6.0, metavar="S", help="mean seconds between faults (default 6)"
    )
    command.add_argument("--seed", type=int, default=0, help="of all choices (default 0)")
    command.add_argument("--json", action="store_true", help="one JSON document instead of the report")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the soak and print its outcome; returns the exit status."""
    plan = plan_of(options)
    with progress_bar(round(plan.seconds)) as bar:
        result = soak(plan, lambda done_s, text: bar.remaining(text, round(plan.seconds - done_s)))
    if options.json:
        document = {**dataclasses.asdict(plan), **dataclasses.asdict(result)}
        print(json.dumps({"schema": 1, **document, "slurm": not result.slurm_missing}))
    else:
        print("\n".join(_lines(result)))
    return 1 if result.breaches else 0


def plan_of(options: argparse.Namespace) -> SoakPlan:
    """The soak that the arguments describe. Raises UsageError: one is out of range."""
    for name, value in (("--minutes", options.minutes), ("--fault-every", options.fault_every)):
        if not 0 < value < 10_000:
            raise UsageError(f"{name}: expected a number above 0 and below 10000, got {value:g}")
    return SoakPlan(60 * options.minutes, options.fault_every, options.seed)


def _lines(result: SoakResult) -> list[str]:
    return [
        f"clients: {_counted(result.guests)}; {result.killed} were killed",
        f"faults: {_counted(result.faults)}",
        f"submissions: {result.acknowledged} acknowledged, {result.ended} ended, {result.failed} failed",
        f"Slurm: {_counted(result.slurm_jobs)}"
        if not result.slurm_missing
        else f"Slurm: left out, as {', '.join(result.slurm_missing)} are not installed",
        *(
            f"{name}: {result.statuses[name]} statuses, the slowest {1000 * result.slowest_s[name]:.0f} ms; "
            f"{_held(result.held[name])} at the end, {_held(result.fresh[name])} when started afresh"
            for name in result.statuses
        ),
        *(f"BROKEN: {breach}" for breach in result.breaches),
        f"{len(result.breaches)} invariants broken" if result.breaches else "all invariants held",
    ]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _held(held: Any) -> str:
    return f"{held.descriptors} descriptors, {held.resident_mib:.0f} MiB"
