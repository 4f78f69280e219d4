"""Where the gate is that large operations ask at, as a person sets it in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import BINARY_SIZES, parse_number, parse_size_bytes

THRESHOLD_BYTES = 65536
TIMEOUT_S = 5.0
_MAX_THRESHOLD_BYTES = 1 << 39


@dataclass(frozen=True)
class GateSettings:
    """How this process asks at a gate.

    Attributes:
        address: ``unix:/path`` or ``host:port`` (MLTCP_GATE).
        threshold_bytes: operations of a smaller payload do not ask (MLTCP_GATE_BYTES).
        timeout_s: a gate that says nothing for so long is taken for dead (MLTCP_GATE_TIMEOUT, in seconds).
        token: that the gate wants to hear, if it does (MLTCP_GATE_TOKEN).
    """

    address: str
    threshold_bytes: int = THRESHOLD_BYTES
    timeout_s: float = TIMEOUT_S
    token: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> GateSettings | None:
        """The settings as they stand in the environment; None without MLTCP_GATE.

        Raises:
            UsageError: a variable has a value that it cannot have.
        """
        address = environment.get("MLTCP_GATE", "").strip()
        if not address:
            return None
        check_address("MLTCP_GATE", address)
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
        )


def check_address(variable: str, address: str) -> None:
    """Raise UsageError unless it is ``unix:/path`` or ``host:port``."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:"):
        good = len(address) > len("unix:")
    else:
        good = bool(host) and port.isdecimal() and 0 < int(port) < 65536
    if not good:
        raise UsageError(f"{variable}={address}: unix:/path or host:port is allowed")
