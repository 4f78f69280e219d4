"""``mltcp-bench soak`` and ``mltcp-bench slurm``: clients and faults, and whether all invariants held."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bench.soak.host_state import Held
from bench.soak.slurm_trial import TrialPlan, TrialResult, run_trial
from bench.soak.soak import SoakPlan, SoakResult, soak
from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from mltcp.core.subcommands import add_command

_SOAK_EXAMPLES = """\
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
    """Add ``soak`` and ``slurm`` to the commands."""
    command = add_command(commands, "soak", _soak, _SOAK_EXAMPLES)
    add = command.add_argument
    add("--minutes", type=float, default=5.0, metavar="N", help="default %(default)s")
    add("--fault-every", type=float, default=6.0, metavar="S", help="mean seconds between faults (default 6)")
    add("--seed", type=int, default=0, help="of all choices (default 0)")
    add("--json", action="store_true", help="one JSON document instead of the report")
    _add_slurm(commands)


def _soak(options: argparse.Namespace) -> int:
    """Run the soak and print its outcome; returns the exit status."""
    plan = soak_plan(options)
    with progress_bar(round(plan.seconds)) as bar:
        result = soak(plan, lambda done_s, text: bar.remaining(text, round(plan.seconds - done_s)))
    if options.json:
        document = {**dataclasses.asdict(plan), **dataclasses.asdict(result)}
        print(json.dumps({"schema": 1, **document, "slurm": not result.slurm_missing}))
    else:
        print("\n".join(_soak_lines(result)))
    return 1 if result.breaches else 0


def soak_plan(options: argparse.Namespace) -> SoakPlan:
    """The soak that the arguments describe. Raises UsageError: one is out of range."""
    for name, value in (("--minutes", options.minutes), ("--fault-every", options.fault_every)):
        if not 0 < value < 10_000:
            raise UsageError(f"{name}: expected a number above 0 and below 10000, got {value:g}")
    return SoakPlan(60 * options.minutes, options.fault_every, options.seed)


def _soak_lines(result: SoakResult) -> list[str]:
    return [
        f"clients: {_counted(result.guests)}; {result.killed} were killed",
        f"faults: {_counted(result.faults)}",
        f"submissions: {result.acknowledged} acknowledged, {result.ended} ended, {result.failed} failed",
        f"Slurm: {_counted(result.slurm_jobs)}"
        if not result.slurm_missing
        else f"Slurm: left out, as {', '.join(result.slurm_missing)} are not installed",
        *(
            f"{name}: {result.statuses[name]} statuses, the slowest {1000 * result.slowest_s[name]:.0f} ms; "
            f"{_held(result.held.get(name))} at the end, {_held(result.fresh.get(name))} when started afresh"
            for name in result.statuses
        ),
        *(f"BROKEN: {breach}" for breach in result.breaches),
        f"{len(result.breaches)} invariants broken" if result.breaches else "all invariants held",
    ]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _held(held: Held | None) -> str:
    return "unknown" if held is None else f"{held.descriptors} descriptors, {held.resident_mib:.0f} MiB"


# -- slurm -------------------------------------------------------------------------------------------------------------

_SLURM_EXAMPLES = """\
examples:
  mltcp-bench slurm --jobs 20 --nodes 2             a short trial
  mltcp-bench slurm                                 200 jobs on 8 nodes with 4 GPUs each
  mltcp-bench slurm --kills 10 --seed 1 --json      and each of service, slurmctld, slurmd and munged killed ten times
  mltcp-bench slurm --restarts 10                   the service, with tokens, ended and killed ten times in all

Everything runs on this machine, in a directory of its own, beside a Slurm that it may have: munged, slurmctld, a
slurmd a node, slurmdbd with a database, and the placement service with --engine slurm. GPUs are null devices. The exit
status is 1 if a job was lost, ended by a restart of the service or ran twice, a GPU was given twice or not given back,
or accounting and the service do not agree.
"""


def _add_slurm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``slurm`` to the commands."""
    command = add_command(commands, "slurm", _slurm, _SLURM_EXAMPLES)
    plan = TrialPlan()
    add = command.add_argument
    add("--jobs", type=int, default=plan.jobs, metavar="N", help="default %(default)s")
    add("--nodes", type=int, default=plan.nodes, metavar="N", help="default %(default)s")
    add("--gpus", type=int, default=plan.gpus, metavar="N", help="of each node (default %(default)s)")
    add("--kills", type=int, default=0, metavar="N", help="how often each daemon is killed (default 0)")
    add(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often the service is ended or killed, by turns, and started again; it then has tokens and short "
        "leases, and a tenth of the jobs have agents (default 0)",
    )
    add(
        "--no-accounting",
        action="store_true",
        help="without slurmdbd and its database: squeue is asked instead of sacct",
    )
    add("--seed", type=int, default=0, help="of all choices (default 0)")
    add("--json", action="store_true", help="one JSON document instead of the report")


def _slurm(options: argparse.Namespace) -> int:
    """Run the trial and print what it found; returns the exit status."""
    plan = trial_plan(options)
    with progress_bar(plan.jobs) as bar:
        result = run_trial(plan, lambda left: bar.remaining("jobs", left))
    if options.json:
        print(json.dumps({"schema": 1, **dataclasses.asdict(plan), **dataclasses.asdict(result)}))
    else:
        print("\n".join(_trial_lines(plan, result)))
    return 1 if result.breaches else 0


def trial_plan(options: argparse.Namespace) -> TrialPlan:
    """The trial that the arguments describe. Raises UsageError: one is out of range."""
    for name, value, lowest, highest in (
        ("--jobs", options.jobs, 1, 10_000),
        ("--nodes", options.nodes, 1, 64),
        ("--gpus", options.gpus, 1, 64),
        ("--kills", options.kills, 0, 1000),
        ("--restarts", options.restarts, 0, 1000),
    ):
        if not lowest <= value <= highest:
            raise UsageError(f"{name}: expected {lowest} to {highest}, got {value}")
    return TrialPlan(
        options.jobs,
        options.nodes,
        options.gpus,
        options.kills,
        options.restarts,
        options.seed,
        not options.no_accounting,
    )


def _trial_lines(plan: TrialPlan, result: TrialResult) -> list[str]:
    kills = ", ".join(f"{count} {name}" for name, count in result.kills.items() if count) or "none"
    median_ms, largest_ms = result.handover_ms
    restarts = (
        f"; {result.restarts} restarts of the service under tokens, {result.agents} jobs with agents"
        if plan.restarts
        else ""
    )
    resumed = f"; {result.resumed} nodes put back that Slurm had drained" if result.resumed else ""
    return [
        f"{result.finished} of {plan.jobs} jobs finished in {result.seconds:.0f} s; killed: {kills}{restarts}{resumed}",
        f"placement to the end of sbatch: median {median_ms:.0f} ms, largest {largest_ms:.0f} ms",
        *(f"BROKEN: {breach}" for breach in result.breaches),
        f"{len(result.breaches)} invariants broken" if result.breaches else "all invariants held",
    ]
