"""Arguments and output of the commands that call the placement service."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mltcp.core.one_line import one_line
from placement.cli.service.listening import read_token
from placement.client.client import Client


def add_connection(command: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the service is and how to connect."""
    group = command.add_argument_group("service")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="unix:/path or host:port (default $MLTCP_PLACEMENT, or the user's own service)",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token (default: the token in $MLTCP_PLACEMENT_TOKEN)",
    )
    group.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="use TLS with these root certificates (default $MLTCP_PLACEMENT_CA)",
    )
    group.add_argument(
        "--identity",
        type=Path,
        metavar="FILE",
        help="PEM file with your certificate and its key, for mutual TLS (default $MLTCP_PLACEMENT_IDENTITY)",
    )
    group.add_argument(
        "--plain-text-tokens",
        action="store_true",
        help="send the token over TCP without TLS too (default $MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS)",
    )
    group.add_argument(
        "--socket-owner",
        metavar="ACCOUNT",
        help="account that runs the service at a Unix socket, if it is neither yours nor root "
        "(default $MLTCP_PLACEMENT_SOCKET_OWNER)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def client_of(options: argparse.Namespace) -> Client:
    """The client that the arguments describe.

    Raises:
        UsageError: an argument is invalid, or a file that it names cannot be read; see also `Client`.
    """
    token = None if options.token_file is None else read_token(options.token_file).split("#")[0].strip()
    return Client(
        options.address,
        token=token,
        certificate=options.ca,
        identity=options.identity,
        plain_text_tokens=options.plain_text_tokens or None,
        socket_owner=options.socket_owner,
    )


def print_json(document: Any) -> None:
    """Print one JSON document with the version of its schema."""
    print(json.dumps({"schema": 1, **document}, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table: with rules on a terminal, elsewhere as plain text that is not cut to a width.

    Cells may hold what others have written: nothing in them is taken for markup, or for the terminal.
    """
    console = Console(highlight=False)
    box = HORIZONTALS if console.is_terminal else None
    if not console.is_terminal:
        console = Console(highlight=False, width=1000)
    table = Table(*columns, box=box, title=title or None, title_justify="left", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console.print(table)


def milliseconds(value_ns: int) -> str:
    """A duration as text."""
    return f"{value_ns / 1e6:.3f} ms"


def places_text(places: Iterable[Any]) -> str:
    """Slots as text, such as ``s1:0,2 s2:1``."""
    return " ".join(f"{each.server}:{','.join(map(str, each.slots))}" for each in places)
