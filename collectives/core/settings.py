"""The backend's settings, read from the environment of a training job and validated once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collectives.core.gate_settings import GateSettings, check_address
from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_flag, parse_rate_bps
from mltcp.core.wrapped_backends import WRAP, parse_wrapped
from mltcp.ebpf.congestion_controls import DEFAULT_CONTROL
from mltcp.pacing.rate_law import MAX_LINE_RATE_BPS, MIN_LINE_RATE_BPS

NO_CONTROL = "none"
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

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from environment variables.

        Raises:
            UsageError: a variable has an invalid value.
        """
        control = environment.get("MLTCP_CC", "").strip()
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


def _placement(address: str) -> str:
    if address:
        check_address("MLTCP_PLACEMENT", address)
    return address
