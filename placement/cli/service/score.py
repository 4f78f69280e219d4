"""``mltcp-placement score`` as a command: how well jobs would fit together on a link."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from mltcp.core.errors import UsageError
from placement.cli.service.arguments import add_connection, client_of, milliseconds, print_json, print_table

_EXAMPLES = """\
examples:
  mltcp-placement score bert-7 vgg-2 --link rack0              jobs that the service knows, on one of its links
  mltcp-placement score bert-7 new.json --capacity-gbps 10     and a profile that it does not know
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``score`` to the commands."""
    command = commands.add_parser(
        "score",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "jobs", nargs="+", metavar="JOB", help="ids, or files that end in .json with profiles"
    )
    command.add_argument("--link", default="", metavar="NAME", help="of the service, or ...")
    command.add_argument("--capacity-gbps", type=float, metavar="X", help="... one of this capacity")
    add_connection(command)
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Score; returns the exit status."""
    from placement.service.protocol.documents import document, profile_from_file

    if bool(options.link) == (options.capacity_gbps is not None):
        raise UsageError("--link, or --capacity-gbps, is needed")
    files = [each for each in options.jobs if each.endswith(".json")]
    ids = [each for each in options.jobs if not each.endswith(".json")]
    profiles = [profile_from_file(Path(each)) for each in files]
    with client_of(options) as client:
        reply = client.score(ids, profiles, link=options.link, capacity_bps=_bps(options.capacity_gbps))
    if options.json:
        print_json({"jobs": [*ids, *files], **document(reply)})
        return 0
    bound = "the best there is" if reply.proven else f"none is better than {reply.bound:.4f}"
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
        raise UsageError(f"--capacity-gbps {gbps:g}: more than 0, up to 1000000, is allowed")
    return round(gbps * 1e9)
