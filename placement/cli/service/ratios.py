"""``mltcp-placement ratios``: the contention ratios in use by the placement service."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from placement.cli.command import add_command
from placement.cli.service.arguments import add_connection, client_of, print_json, print_table

if TYPE_CHECKING:
    from placement.service.protocol import placement_pb2 as pb

_EXAMPLES = """\
examples:
  mltcp-placement ratios                  the ratios that were measured on running jobs
  mltcp-placement ratios -o measured      writes the table in use, for serve --table and jobs --table
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``ratios`` to the commands."""
    command = add_command(commands, "ratios", execute, _EXAMPLES)
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write the table in the format of the shipped one"
    )
    add_connection(command)


def execute(options: argparse.Namespace) -> int:
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
