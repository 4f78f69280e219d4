"""Arguments and output that the commands ``serve`` and ``gate`` share."""

from __future__ import annotations

import json
from pathlib import Path

from mltcp.core.address import Address
from mltcp.core.errors import UsageError


def print_listening(server: str, address: Address, policy: str, as_json: bool) -> None:
    """Print the address at which a server answers, for people or as a line of JSON."""
    if as_json:
        line = json.dumps({"schema": 1, "address": str(address), "policy": policy})
    else:
        line = f"{server}: {policy}, at {address}"
    print(line, flush=True)


def read_token(path: Path) -> str:
    """The content of the file given by ``--token-file``.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: {error}") from None
