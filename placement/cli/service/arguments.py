"""The arguments of all commands that talk to the placement service."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from mltcp.core.errors import UsageError
from placement.client.client import Client


def add_connection(command: argparse.ArgumentParser) -> None:
    """Add where the service is, and how it is talked to."""
    group = command.add_argument_group("service")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="unix:/path or host:port (default $MLTCP_PLACEMENT, or the user's own service)",
    )
    group.add_argument(
        "--token-file", type=Path, metavar="FILE", help="with the token (default $MLTCP_PLACEMENT_TOKEN)"
    )
    group.add_argument(
        "--ca", type=Path, metavar="FILE", help="speak TLS, with these roots (default $MLTCP_PLACEMENT_CA)"
    )
    command.add_argument("--json", action="store_true", help="one JSON document")


def client_of(options: argparse.Namespace) -> Client:
    """The client that the arguments describe.

    Raises:
        UsageError: what is wrong with them.
    """
    token = None
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().split("#")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file {options.token_file}: {error}") from None
    return Client(options.address, token=token, certificate=options.ca)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps({"schema": 1, **document}, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table: with rules on a terminal, elsewhere as plain text that is never cut to a width."""
    console = Console(highlight=False)
    box = HORIZONTALS if console.is_terminal else None
    if not console.is_terminal:
        console = Console(highlight=False, width=1000)
    table = Table(*columns, box=box, title=title or None, title_justify="left", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def milliseconds(value_ns: int) -> str:
    """A time for people."""
    return f"{value_ns / 1e6:.3f} ms"


def places_text(places: Iterable[Any]) -> str:
    """Slots for people, such as ``s1:0,2 s2:1``."""
    return " ".join(f"{each.server}:{','.join(map(str, each.slots))}" for each in places)
