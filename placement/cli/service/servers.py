"""``mltcp-placement servers``: take servers of the placement service out of use, and into use again."""

from __future__ import annotations

import argparse

from placement.cli.command import add_command
from placement.cli.service.arguments import add_connection, client_of, print_json

_EXAMPLES = """\
examples:
  mltcp-placement servers drain s3 --reason "new memory"   jobs there go on, no other is placed there
  mltcp-placement servers drain rack-2                     all servers below a switch
  mltcp-placement servers unhealthy s3                     elastic jobs there are stopped, to go on elsewhere
  mltcp-placement servers use s3                           jobs are placed there again
  mltcp-placement servers remove s3                        once no job runs there
"""

_STATES = {"use": "IN_USE", "drain": "DRAINING", "unhealthy": "UNHEALTHY", "remove": "REMOVED"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``servers`` to the commands."""
    command = add_command(commands, "servers", execute, _EXAMPLES)
    command.add_argument("action", choices=_STATES, help="what becomes of them")
    command.add_argument(
        "names", nargs="+", metavar="NAME", help="a server, or a switch: all servers below it"
    )
    command.add_argument("--reason", default="", help="is shown by status")
    add_connection(command)


def execute(options: argparse.Namespace) -> int:
    """Change the servers; returns the exit status."""
    from placement.service.protocol import placement_pb2 as pb

    state = pb.ServerState.Value(_STATES[options.action])
    with client_of(options) as client:
        changed = client.change_servers(options.names, state, options.reason)
    if options.json:
        print_json({"changed": changed, "state": _STATES[options.action]})
    else:
        text = _STATES[options.action].lower().replace("_", " ")
        print(f"{changed} server{'s' if changed != 1 else ''} {'is' if changed == 1 else 'are'} {text} now")
    return 0
