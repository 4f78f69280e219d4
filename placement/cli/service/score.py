"""``mltcp-placement score``: the compatibility score of jobs on a link."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from mltcp.core.errors import UsageError
from placement.cli.command import add_command
from placement.cli.service.arguments import add_connection, client_of, milliseconds, print_json, print_table

_EXAMPLES = """\
examples:
  mltcp-placement score bert-7 vgg-2 --link rack0              jobs of the service on one of its links
  mltcp-placement score bert-7 new.json --capacity-gbps 10     a job of the service and a profile in a file
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``score`` to the commands."""
    command = add_command(commands, "score", execute, _EXAMPLES)
    command.add_argument(
        "jobs", nargs="+", metavar="JOB", help="a job's id, or a profile in a file that ends in .json"
    )
    command.add_argument("--link", default="", metavar="NAME", help="a link of the service")
    command.add_argument(
        "--capacity-gbps", type=float, metavar="X", help="capacity of a link, instead of --link"
    )
    add_connection(command)


def execute(options: argparse.Namespace) -> int:
    """Print the score; returns the exit status."""
    from placement.service.protocol.documents import document, profile_from_file

    if bool(options.link) == (options.capacity_gbps is not None):
        raise UsageError("expected either --link or --capacity-gbps")
    files = [each for each in options.jobs if each.endswith(".json")]
    ids = [each for each in options.jobs if not each.endswith(".json")]
    profiles = [profile_from_file(Path(each)) for each in files]
    with client_of(options) as client:
        reply = client.score(ids, profiles, link=options.link, capacity_bps=_bps(options.capacity_gbps))
    if options.json:
        print_json({"jobs": [*ids, *files], **document(reply)})
        return 0
    bound = "the optimum" if reply.proven else f"the optimum is at most {reply.bound:.4f}"
    print(f"score {reply.score:.4f} ({bound})")
    print_table(
        ("job", "rotation", "time shift"),
        [
            (name, f"{math.degrees(rotation):.1f} degrees", milliseconds(shift))
            for name, rotation, shift in zip([*ids, *files], reply.rotations, reply.shifts_ns, strict=True)
        ],
    )
    return 0


def _bps(gbps: float | None) -> int:
    if gbps is None:
        return 0
    if not 0 < gbps <= 1_000_000:
        raise UsageError(f"--capacity-gbps: expected more than 0 and at most 1000000, got {gbps:g}")
    return round(gbps * 1e9)
