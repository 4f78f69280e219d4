"""The default address of the placement service."""

from __future__ import annotations

import os
from pathlib import Path

from mltcp.core.address import Address

VARIABLE = "MLTCP_PLACEMENT"
"""The environment variable with the address of the service."""

_NAME = "placement.sock"


def default_address() -> Address:
    """The address in ``MLTCP_PLACEMENT``, or else a Unix socket in the user's runtime directory.

    Raises:
        UsageError: the variable holds no address.
    """
    given = os.environ.get(VARIABLE, "")
    if given:
        return Address.parse(given, VARIABLE)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Address(path=Path(runtime, "mltcp") / _NAME if runtime else _fallback_directory() / _NAME)


def _fallback_directory() -> Path:
    return Path("/run/mltcp" if os.getuid() == 0 else f"/tmp/mltcp-{os.getuid()}")
