"""The settings of the all-reduce gate's client, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from mltcp.core.quantities import BINARY_SIZES, parse_number, parse_size_bytes
from mltcp.core.trusted_directory import account_number

THRESHOLD_BYTES = 65536
TIMEOUT_S = 5.0
_MAX_THRESHOLD_BYTES = 1 << 39


@dataclass(frozen=True)
class GateSettings:
    """How this process reaches a gate, and which operations ask it.

    Attributes:
        address: ``unix:/path`` or ``host:port`` (MLTCP_GATE).
        threshold_bytes: operations with a smaller payload need no pass (MLTCP_GATE_BYTES).
        timeout_s: a gate that does not answer for this long counts as dead (MLTCP_GATE_TIMEOUT, in seconds).
        token: authenticates this process at the gate, if the gate requires it (MLTCP_GATE_TOKEN).
        socket_owner: number of the account that runs the gate at a Unix socket, if it is neither this one nor root
            (MLTCP_GATE_SOCKET_OWNER, a name or number).
    """

    address: str
    threshold_bytes: int = THRESHOLD_BYTES
    timeout_s: float = TIMEOUT_S
    token: str = ""
    socket_owner: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> GateSettings | None:
        """Read the settings from environment variables; None without MLTCP_GATE.

        Raises:
            UsageError: a variable has an invalid value.
        """
        address = environment.get("MLTCP_GATE", "").strip()
        if not address:
            return None
        check_address("MLTCP_GATE", address)
        owner = environment.get("MLTCP_GATE_SOCKET_OWNER", "").strip()
        return cls(
            address,
            parse_size_bytes(
                environment.get("MLTCP_GATE_BYTES", "").strip() or str(THRESHOLD_BYTES),
                field="MLTCP_GATE_BYTES",
                units=BINARY_SIZES,
                lowest=0,
                highest=_MAX_THRESHOLD_BYTES,
            ),
            parse_number(
                environment.get("MLTCP_GATE_TIMEOUT", "").strip() or str(TIMEOUT_S),
                field="MLTCP_GATE_TIMEOUT",
                lowest=0.01,
                highest=3600,
            ),
            environment.get("MLTCP_GATE_TOKEN", ""),
            account_number(owner, "MLTCP_GATE_SOCKET_OWNER") if owner else None,
        )


def check_address(variable: str, text: str) -> None:
    """Raise UsageError unless `text` is an address that can be connected to: ``unix:/path`` or ``host:port``."""
    address = Address.parse(text, variable)
    if address.path is None and address.port == 0:
        raise UsageError(f"{variable}: expected a port from 1 to 65535, got {text!r}")
