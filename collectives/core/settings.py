"""What a person sets in the environment of a training job, read and checked once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collectives.core.gate_settings import GateSettings, check_address
from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_rate_bps
from mltcp.ebpf.congestion_controls import DEFAULT_CONTROL
from mltcp.pacing.rate_law import MAX_LINE_RATE_BPS, MIN_LINE_RATE_BPS

WRAPPABLE = ("gloo", "nccl")
NO_CONTROL = "none"
LAWS = ("mltcp_dcqcn", "dcqcn")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Pace:
    """How connections are paced by their own sockets: the network's line rate, and whether F acts."""

    line_rate_bps: int
    mltcp: bool = True


@dataclass(frozen=True)
class Settings:
    """The settings of this process's job.

    Attributes:
        wrap: backends whose groups are built by this one (MLTCP_WRAP).
        control: the congestion control for the job's sockets, or ``none`` to leave them alone (MLTCP_CC).
        control_asked: whether a person named the control, or it is the default.
        strict: whether what is missing on the host is an error (MLTCP_STRICT).
        profile: the file that the job's demand profile is written to, if any (MLTCP_PROFILE).
        job: the job's name (MLTCP_JOB; else the program's).
        pace: how this process paces its own connections, if it does (MLTCP_PACE).
        gate: where large operations ask whether they may go, if they do (MLTCP_GATE and others).
        placement: the address of the placement service that shifts the job in time, if one does (MLTCP_PLACEMENT).
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
        """The settings as they stand in the environment.

        Raises:
            UsageError: a variable has a value that it cannot have.
        """
        control = environment.get("MLTCP_CC", "").strip()
        profile = environment.get("MLTCP_PROFILE", "")
        return cls(
            wrap=_wrapped(environment.get("MLTCP_WRAP", "")),
            control=control or DEFAULT_CONTROL,
            control_asked=bool(control),
            strict=_flag("MLTCP_STRICT", environment.get("MLTCP_STRICT", "")),
            profile=Path(profile) if profile else None,
            job=environment.get("MLTCP_JOB") or Path(sys.argv[0] or "job").stem,
            pace=_pace(environment.get("MLTCP_PACE", "")),
            gate=GateSettings.from_environment(environment),
            placement=_placement(environment.get("MLTCP_PLACEMENT", "").strip()),
        )


def _wrapped(text: str) -> frozenset[str]:
    names = frozenset(filter(None, (name.strip().lower() for name in text.split(","))))
    for name in sorted(names):
        if name not in WRAPPABLE:
            raise UsageError(
                f"MLTCP_WRAP={text}: {name!r} cannot be wrapped; choose from {', '.join(WRAPPABLE)}"
            )
    return names


def _pace(text: str) -> Pace | None:
    """``25gbit``, or ``25gbit,dcqcn`` for the law without F."""
    if not text.strip():
        return None
    rate, comma, law = text.strip().partition(",")
    if comma and law not in LAWS:
        raise UsageError(f"MLTCP_PACE={text}: unknown law {law!r}; choose from {', '.join(LAWS)}")
    rate_bps = parse_rate_bps(rate, field="MLTCP_PACE", lowest=MIN_LINE_RATE_BPS, highest=MAX_LINE_RATE_BPS)
    return Pace(rate_bps, law != "dcqcn")


def _placement(address: str) -> str:
    if address:
        check_address("MLTCP_PLACEMENT", address)
    return address


def _flag(name: str, value: str) -> bool:
    if value.lower() not in _TRUE + _FALSE:
        raise UsageError(f"{name}={value}: choose 1 or 0")
    return value.lower() in _TRUE
