"""``mltcp-placement explain``, ``score`` and ``ratios``: reasons of placements, scores and contention ratios."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line
from mltcp.core.subcommands import add_command
from placement.cli.service.arguments import (
    add_connection,
    client_of,
    milliseconds,
    places_text,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from placement.service.protocol import placement_pb2 as pb


_EXPLAIN_EXAMPLES = """\
examples:
  mltcp-placement explain bert-7             the candidate placements, their scores, and the reason of the choice
  mltcp-placement explain bert-7 --json
"""

_SCORE_EXAMPLES = """\
examples:
  mltcp-placement score bert-7 vgg-2 --link rack0              jobs of the service on one of its links
  mltcp-placement score bert-7 new.json --capacity-gbps 10     a job of the service and a profile in a file
"""

_RATIOS_EXAMPLES = """\
examples:
  mltcp-placement ratios                  the ratios that were measured on running jobs
  mltcp-placement ratios -o measured      writes the table in use, for serve --table and jobs --table
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain``, ``score`` and ``ratios`` to the commands."""
    command = add_command(commands, "explain", _explain, _EXPLAIN_EXAMPLES)
    command.add_argument("job", metavar="JOB")
    add_connection(command)
    command = add_command(commands, "score", _score, _SCORE_EXAMPLES)
    command.add_argument(
        "jobs", nargs="+", metavar="JOB", help="a job's id, or a profile in a file that ends in .json"
    )
    command.add_argument("--link", default="", metavar="NAME", help="a link of the service")
    command.add_argument(
        "--capacity-gbps", type=float, metavar="X", help="capacity of a link, instead of --link"
    )
    add_connection(command)
    command = add_command(commands, "ratios", _ratios, _RATIOS_EXAMPLES)
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write the table in the format of the shipped one"
    )
    add_connection(command)


def _explain(options: argparse.Namespace) -> int:
    """Print the explanation; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        found = client.explain(options.job)
    if options.json:
        print_json(document(found))
        return 0
    print(one_line(f"{found.job_id}: {found.summary}"))
    if found.candidates:
        print(f"decided in {found.decision_ns / 1e6:.2f} ms")
        print_table(
            ("", "places", "score", "reason"),
            [
                (
                    "taken" if each.chosen else "",
                    places_text(each.places),
                    f"{each.score:.4f}" if each.HasField("score") else "",
                    each.reason,
                )
                for each in found.candidates
            ],
        )
    links = [link for each in found.candidates if each.chosen for link in each.links]
    if links:
        print_table(
            ("link", "score", "at best", "jobs"),
            [(each.link, f"{each.score:.4f}", f"{each.bound:.4f}", " ".join(each.jobs)) for each in links],
        )
    return 0


def _score(options: argparse.Namespace) -> int:
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


def _ratios(options: argparse.Namespace) -> int:
    """Print the measured ratios; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        reply = client.ratios()
    files = [] if options.output is None else _write(reply, options.output)
    if options.json:
        print_json({**document(reply), "files": files})
        return 0
    rows = [
        (
            _text(each.target),
            _text(each.other),
            f"{each.given:.3f}",
            f"{each.ratio:.3f}",
            str(each.observations),
        )
        for each in reply.ratios
        if each.observations
    ]
    print_table(("job", "beside", "in the table", "now", "observations"), rows)
    for file in files:
        print(f"wrote {file}")
    return 0


def _write(reply: pb.RatiosReply, folder: Path) -> list[str]:
    from placement.model.throughput_table import Layout, SensitivityTable, write_table

    def layout(message: pb.TableLayout) -> Layout:
        return Layout(message.model, message.gpus, message.nodes)

    table = SensitivityTable(
        reply.name,
        {layout(each.layout): each.samples_per_s for each in reply.isolated},
        {(layout(each.target), layout(each.other)): each.ratio for each in reply.ratios},
        {(each.model, each.gpus): each.total_samples for each in reply.samples},
    )
    return [str(path) for path in write_table(table, folder)]


def _text(layout: pb.TableLayout) -> str:
    return f"{layout.model} {layout.gpus} on {layout.nodes}"
