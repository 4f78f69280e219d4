"""The frame of a command's parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable


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
