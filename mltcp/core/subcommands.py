"""Sub-commands of a command-line tool whose modules are imported only when the command line names them."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mltcp.core.extras import installed_version


@dataclass(frozen=True)
class Subcommand:
    """A sub-command: its line in the tool's ``--help``, and the module that implements it.

    The module has ``add_parser(subparsers)``, which adds the parsers of all its sub-commands (usually one) and sets
    their default ``execute``. `extra` is the extra of the distribution that the module needs.
    """

    name: str
    module: str
    help: str
    extra: str | None = None


def named_subcommand(table: Iterable[Subcommand], arguments: Sequence[str]) -> Subcommand | None:
    """The sub-command that the first argument names."""
    return next((each for each in table if each.name in arguments[:1]), None)


class _Version(argparse.Action):
    """Prints the version, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(parser.prog, installed_version())
        parser.exit()


def add_subcommands(
    parser: argparse.ArgumentParser, table: Sequence[Subcommand], named: Subcommand | None
) -> None:
    """Add ``--version``, and the parsers of sub-commands: a complete one for `named`, a line of help for the others."""
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    added = set()
    for each in table:
        if named is None or each.module != named.module:
            subparsers.add_parser(each.name, help=each.help)
        elif each.module not in added:
            added.add(each.module)
            importlib.import_module(each.module).add_parser(subparsers)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    execute: Callable[[argparse.Namespace], int],
    examples: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command, whose arguments the caller adds.

    Args:
        commands: to which it is added.
        name: of the command.
        execute: runs it with its arguments, and returns the exit status.
        examples: the end of its help, printed as it is.
    """
    command = commands.add_parser(name, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.set_defaults(execute=execute)
    return command
