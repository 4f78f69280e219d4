"""``mltcp-placement explain``: why a job was placed where it is, or why it waits."""

from __future__ import annotations

import argparse

from mltcp.core.one_line import one_line
from placement.cli.command import add_command
from placement.cli.service.arguments import add_connection, client_of, places_text, print_json, print_table

_EXAMPLES = """\
examples:
  mltcp-placement explain bert-7             the candidate placements, their scores, and the reason of the choice
  mltcp-placement explain bert-7 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain`` to the commands."""
    command = add_command(commands, "explain", execute, _EXAMPLES)
    command.add_argument("job", metavar="JOB")
    add_connection(command)


def execute(options: argparse.Namespace) -> int:
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
