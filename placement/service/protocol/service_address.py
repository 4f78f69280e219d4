"""The default address of the placement service, and the environment variables of its clients."""

from __future__ import annotations

import os
from pathlib import Path

from mltcp.core.address import Address

VARIABLE = "MLTCP_PLACEMENT"
"""The environment variable with the address of the service."""

RESTARTS = "MLTCP_RESTARTS"
"""Environment variable by which the engine tells a run of a job how often the job was stopped and queued before."""

TOKEN = "MLTCP_PLACEMENT_TOKEN"
"""The environment variable with the token of the service."""

PLAIN_TEXT_TOKENS = "MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS"
"""The environment variable that permits to send the token over TCP without TLS."""

SOCKET_OWNER = "MLTCP_PLACEMENT_SOCKET_OWNER"
"""The environment variable with the account that runs the service, if it is neither the user's own nor root."""

_NAME = "placement.sock"


def default_address() -> Address:
    """The address in ``MLTCP_PLACEMENT``, or else a Unix socket in the user's runtime directory.

    Raises:
        UsageError: the variable holds no address, or the socket's path would be too long for one.
    """
    given = os.environ.get(VARIABLE, "")
    if given:
        return Address.parse(given, VARIABLE)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Address.parse(f"unix:{Path(runtime, 'mltcp', _NAME)}", "XDG_RUNTIME_DIR")
    return Address(path=_fallback_directory() / _NAME)


def _fallback_directory() -> Path:
    return Path("/run/mltcp" if os.getuid() == 0 else f"/tmp/mltcp-{os.getuid()}")
