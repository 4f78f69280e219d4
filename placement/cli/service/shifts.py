"""``mltcp-placement shifts``: the time shifts of running jobs, and their drift."""

from __future__ import annotations

import argparse

from placement.cli.command import add_command
from placement.cli.service.arguments import add_connection, client_of, milliseconds, print_json, print_table

_EXAMPLES = """\
examples:
  mltcp-placement shifts                     all jobs that have a time shift
  mltcp-placement shifts bert-7 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``shifts`` to the commands."""
    command = add_command(commands, "shifts", execute, _EXAMPLES)
    command.add_argument("jobs", nargs="*", metavar="JOB", help="a job's id (default: all)")
    add_connection(command)


def execute(options: argparse.Namespace) -> int:
    """Print the time shifts; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        found = client.time_shifts(options.jobs)
    if options.json:
        print_json({"shifts": [document(each) for each in found]})
        return 0
    print_table(
        ("job", "time shift", "iteration", "ahead by", "shared links"),
        [
            (
                each.job_id,
                milliseconds(each.shift_ns),
                milliseconds(each.period_ns),
                milliseconds(each.drift_ns) if each.HasField("drift_ns") else "",
                " ".join(each.links),
            )
            for each in found
        ],
    )
    return 0
