"""``mltcp-placement submit``, ``release`` and ``requeue``: submit jobs to the placement service, and stop them."""

from __future__ import annotations

import argparse
import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import parse_number
from mltcp.core.subcommands import add_command
from placement.cli.service.arguments import add_connection, client_of, places_text, print_json, print_table
from placement.client.client import Client

if TYPE_CHECKING:
    from placement.service.protocol import placement_pb2 as pb

_EXAMPLES = """\
examples:
  mltcp-placement submit --id bert-7 --gpus 4 --iterations 20000 --profile bert.json
  mltcp-placement submit --id bert-7 --gpus 4 --iterations 20000 --wait ended -- train.py --lr 0.1
  mltcp-placement submit --id bert-8 --gpus 4 --iterations 20000 --deadline 2030-01-31T18:00
  mltcp-placement submit --id bert-9 --gpus 4 --iterations 20000 --priority 1 --profile bert.json --elastic -- train.py
  mltcp-placement submit --id bert-10 --gpus 1 --iterations 20000 --speed speed.json --checkpoints /shared/bert-10
                         --priority 0.5 --elastic -- train.py
  mltcp-placement submit --id fsdp-1 --gpus 4 --iterations 20000 --model FSDP --elastic -- train.py
  mltcp-placement submit --file jobs.json --json

The client chooses the id. Submitting the same job again has no effect, so a command whose answer was lost can be
repeated. When it returns, the job is durable.
"""
_POLL_S = 0.2
_LATEST_NS = 1 << 62
"""The latest deadline that the service accepts, in the year 2116."""
_WAITS = ("placed", "ended")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``submit``, ``release`` and ``requeue`` to the commands."""
    submit = add_command(commands, "submit", execute, _EXAMPLES)
    submit.add_argument("--file", type=Path, metavar="FILE", help='JSON of one job, or {"jobs": [...]}')
    job = submit.add_argument_group("job")
    job.add_argument("--id", metavar="NAME", help="unique name of the job")
    job.add_argument("--gpus", type=int, default=0, metavar="N", help="number of GPUs")
    job.add_argument(
        "--cpu-slots", type=int, default=0, metavar="N", help="number of CPU slots instead of GPUs"
    )
    job.add_argument("--memory-mb", type=int, default=0, metavar="N", help="memory that it needs on each GPU")
    job.add_argument(
        "--share", action="store_true", help="share GPUs with other sharing jobs, as the memory permits"
    )
    job.add_argument("--iterations", type=int, default=0, metavar="N", help="number of iterations to train")
    job.add_argument("--profile", type=Path, metavar="FILE", help="demand profile of an iteration, JSON")
    job.add_argument(
        "--speed",
        type=Path,
        metavar="FILE",
        help="how long an iteration takes on any number of slots, JSON, as profile-job writes it",
    )
    job.add_argument(
        "--checkpoints",
        default="",
        metavar="DIR",
        help="of an elastic job: where the service reads how much is done after a stop",
    )
    job.add_argument(
        "--model", default="", metavar="NAME", help="its model in the service's table of contention ratios"
    )
    job.add_argument(
        "--iteration-samples",
        type=float,
        default=0.0,
        metavar="N",
        help="samples of an iteration, in the units of that table (default: one a slot)",
    )
    job.add_argument("--policy", default="", metavar="NAME", help="placement policy (default: the service's)")
    job.add_argument(
        "--deadline",
        metavar="TIME",
        help="when it is to have ended: ISO 8601, such as 2030-01-31T18:00 (local time), or +SECONDS from now",
    )
    job.add_argument(
        "--priority",
        type=float,
        metavar="ALPHA",
        help="a deadline of ALPHA times its run time on one GPU; smaller is more urgent, needs --speed or --profile",
    )
    job.add_argument(
        "--elastic",
        action="store_true",
        help="its COMMAND stops at a step boundary on SIGTERM and goes on with any number of slots (docs/elastic.md)",
    )
    job.add_argument(
        "--servers", default="", metavar="NAMES", help="place it on these servers only, separated by commas"
    )
    job.add_argument(
        "--per-server",
        type=int,
        default=0,
        metavar="N",
        help="slots on every server that it gets any of (default: as the policy chooses)",
    )
    job.add_argument(
        "--wait", choices=_WAITS, help="wait for this state; Ctrl-C ends the waiting, not the job"
    )
    job.add_argument(
        "program", nargs="*", metavar="COMMAND", help="command for the service's engine, after --"
    )
    add_connection(submit)
    for name, shown_by in (("release", "status"), ("requeue", "status until it goes on")):
        command = add_command(commands, name, _stop)
        command.add_argument("jobs", nargs="+", metavar="JOB")
        command.add_argument("--reason", default="", help=f"shown by {shown_by}")
        add_connection(command)


def execute(options: argparse.Namespace) -> int:
    """Submit the jobs; returns the exit status."""
    jobs = _jobs(options)
    with client_of(options) as client:
        found = [client.submit(job) for job in jobs]
        if options.wait:
            found = [_wait(client, each, options.wait) for each in found]
    _print(found, options)
    return 1 if any(_state(each) == "FAILED" for each in found) else 0


def _stop(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        stop = client.release if options.command == "release" else client.requeue
        found = [stop(job, options.reason) for job in options.jobs]
    _print(found, options)
    return 0


def _jobs(options: argparse.Namespace) -> list[pb.Job]:
    from placement.service.protocol import placement_pb2 as pb
    from placement.service.protocol.documents import jobs_from_file, profile_from_file
    from placement.service.protocol.speeds import speed_from_file

    if (options.file is None) == (options.id is None):
        raise UsageError("expected either --file or --id with --gpus and --iterations")
    if options.file is not None:
        return jobs_from_file(options.file)
    job = pb.Job(
        id=options.id,
        gpus=options.gpus,
        cpu_slots=options.cpu_slots,
        memory_mb=options.memory_mb,
        shares_gpus=options.share,
        iterations=options.iterations,
        policy=options.policy,
        servers=[each.strip() for each in options.servers.split(",") if each.strip()],
        command=options.program,
        elastic=options.elastic,
        slots_per_server=options.per_server,
        model=options.model,
        iteration_samples=options.iteration_samples,
        checkpoints=os.path.abspath(options.checkpoints) if options.checkpoints else "",
    )
    if options.deadline is not None:
        job.deadline_ns = _deadline_ns(options.deadline)
    if options.priority is not None:
        job.priority = options.priority
    if options.profile is not None:
        job.profile.CopyFrom(profile_from_file(options.profile))
    if options.speed is not None:
        job.speed.CopyFrom(speed_from_file(options.speed))
    return [job]


def _deadline_ns(text: str) -> int:
    """A time since the epoch; the service checks that it has not passed."""
    try:
        if text.startswith("+"):
            seconds = parse_number(text[1:], field="--deadline", lowest=0)
            found = time.time_ns() + round(seconds * 1e9)
        else:
            found = round(datetime.fromisoformat(text).timestamp()) * 10**9
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--deadline: expected a time in ISO 8601, such as 2030-01-31T18:00, or +SECONDS, got {shown(text)}"
        ) from None
    if not 0 <= found <= _LATEST_NS:
        raise UsageError(f"--deadline: expected a time from 1970 to 2116, got {shown(text)}")
    return found


def _wait(client: Client, status: pb.JobStatus, until: str) -> pb.JobStatus:
    awaited = ("ENDED", "FAILED") if until == "ended" else ("PLACED", "ENDED", "FAILED")
    while _state(status) not in awaited:
        time.sleep(_POLL_S)
        status = client.job(status.id)
    return status


def _state(status: pb.JobStatus) -> str:
    from placement.service.protocol import placement_pb2 as pb

    return pb.JobState.Name(status.state)


def _print(found: list[pb.JobStatus], options: argparse.Namespace) -> None:
    from placement.service.protocol.documents import document

    if options.json:
        print_json({"jobs": [document(each) for each in found]})
    else:
        print_table(
            ("job", "state", "places", "reason"),
            [(each.id, _state(each).lower(), places_text(each.places), each.reason) for each in found],
        )
