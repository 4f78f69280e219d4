"""The backend's settings, read from the environment of a training job and validated once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL, control_name
from mltcp.core.quantities import BINARY_SIZES, parse_flag, parse_number, parse_rate_bps, parse_size_bytes
from mltcp.core.trusted_directory import account_number
from mltcp.core.wrapped_backends import WRAP, parse_wrapped
from mltcp.pacing.rate_law import MAX_LINE_RATE_BPS, MIN_LINE_RATE_BPS

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


# -- settings -----------------------------------------------------------------------------------


NO_CONTROL = "none"
_REPORTS = "MLTCP_REPORT_ITERATIONS"
LAWS = ("mltcp_dcqcn", "dcqcn")


@dataclass(frozen=True)
class Pace:
    """Pacing of the job's connections by their sockets: the line rate, and whether F is applied."""

    line_rate_bps: int
    mltcp: bool = True


@dataclass(frozen=True)
class Settings:
    """The settings of this process.

    Attributes:
        wrap: backends whose groups are built by this backend (MLTCP_WRAP).
        control: congestion control of the job's sockets, or ``none`` to leave them as they are (MLTCP_CC).
        control_asked: whether MLTCP_CC was set, or the control is the default.
        strict: whether a feature that is missing on the host is an error (MLTCP_STRICT).
        profile: file that the job's demand profile is written to, if any (MLTCP_PROFILE).
        job: name of the job (MLTCP_JOB; default: that of the program).
        pace: pacing of this process's connections, if enabled (MLTCP_PACE).
        gate: the gate that large operations ask for a pass, if any (MLTCP_GATE and others).
        placement: address of the placement service that shifts the job in time; empty for none (MLTCP_PLACEMENT).
        dscp: of the job's connections; None: as they are (MLTCP_DSCP).
        reports_iterations: whether the kernel is told where iterations begin (MLTCP_REPORT_ITERATIONS).
    """

    wrap: frozenset[str] = frozenset()
    control: str = DEFAULT_CONTROL
    control_asked: bool = False
    strict: bool = False
    profile: Path | None = None
    job: str = "job"
    pace: Pace | None = None
    gate: GateSettings | None = None
    placement: str = ""
    dscp: int | None = None
    reports_iterations: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from environment variables.

        Raises:
            UsageError: a variable has an invalid value.
        """
        control = control_name(environment.get("MLTCP_CC", "").strip())
        profile = environment.get("MLTCP_PROFILE", "")
        return cls(
            wrap=parse_wrapped(environment.get(WRAP, "")),
            control=control or DEFAULT_CONTROL,
            control_asked=bool(control),
            strict=parse_flag(environment.get("MLTCP_STRICT", ""), field="MLTCP_STRICT"),
            profile=Path(profile) if profile else None,
            job=environment.get("MLTCP_JOB") or Path(sys.argv[0] or "job").stem,
            pace=_pace(environment.get("MLTCP_PACE", "")),
            gate=GateSettings.from_environment(environment),
            placement=_placement(environment.get("MLTCP_PLACEMENT", "").strip()),
            dscp=_dscp(environment.get("MLTCP_DSCP", "").strip()),
            reports_iterations=parse_flag(environment.get(_REPORTS, "") or "1", field=_REPORTS),
        )


def _pace(text: str) -> Pace | None:
    """Parse ``25gbit``, or ``25gbit,dcqcn`` for the rate law without F."""
    if not text.strip():
        return None
    rate, comma, law = text.strip().partition(",")
    if comma and law not in LAWS:
        raise UsageError(f"MLTCP_PACE: expected a rate law among {', '.join(LAWS)}, got {law!r}")
    rate_bps = parse_rate_bps(rate, field="MLTCP_PACE", lowest=MIN_LINE_RATE_BPS, highest=MAX_LINE_RATE_BPS)
    return Pace(rate_bps, law != "dcqcn")


def _dscp(text: str) -> int | None:
    if text and not (text.isdecimal() and len(text) <= 2 and int(text) < 64):
        raise UsageError(f"MLTCP_DSCP: expected 0 to 63, got {text[:40]!r}")
    return int(text) if text else None


def _placement(address: str) -> str:
    if address:
        check_address("MLTCP_PLACEMENT", address)
    return address
