"""The daemon's protocol: one JSON object a packet, over a Unix socket that keeps packets apart (SOCK_SEQPACKET).

A request has `version`, `request` and that request's fields, and may carry descriptors (SCM_RIGHTS). It gets one reply:
``{"version": 1, "ok": true, ...}``, or ``{"version": 1, "ok": false, "error": "one line", "kind": ...}``. A reply that
does not fit one packet comes in several; all but the last have ``"more": true``. After `subscribe`, packets with
``"event"`` come on their own. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError

VERSION = 1
MOST_BYTES = 65536
"""The longest packet."""

MOST_DESCRIPTORS = 64
"""The most descriptors that one request may carry."""

SOCKET = Path("/run/mltcp/mltcpd.sock")
"""Where the daemon listens, if nobody says otherwise."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,30}")
"""What a job may be called; the kernel's map has room for 31 characters."""

KINDS: dict[str, type[MltcpError]] = {
    "usage": UsageError,
    "failed": MltcpError,
    "unavailable": NotAvailableError,
}


class DeniedError(MltcpError):
    """The peer may not do what it asks for."""


KINDS["denied"] = DeniedError


def encode(message: Mapping[str, Any]) -> bytes:
    """A packet.

    Raises:
        UsageError: it is too long.
    """
    packet = json.dumps({"version": VERSION, **message}, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > MOST_BYTES:
        raise UsageError(f"a message of {len(packet)} bytes: at most {MOST_BYTES} are allowed")
    return packet


def decode(packet: bytes) -> Fields:
    """What a packet holds.

    Raises:
        UsageError: it is no JSON object, or of another version.
    """
    try:
        found = json.loads(packet)
    except (ValueError, RecursionError):
        raise UsageError("the message is no JSON") from None
    if not isinstance(found, dict):
        raise UsageError(f"the message is a JSON {type(found).__name__}: an object is allowed")
    fields = Fields(found)
    if fields.get("version") != VERSION:
        raise UsageError(f"version {_shown(fields.get('version'))} of the protocol: {VERSION} is allowed")
    return fields


def error_reply(error: MltcpError) -> dict[str, Any]:
    """The reply that tells a peer what was wrong."""
    kind = next((name for name, kind in KINDS.items() if type(error) is kind), "failed")
    return {"ok": False, "error": " ".join(str(error).split()), "kind": kind}


def raised_from(reply: Mapping[str, Any]) -> MltcpError:
    """The error that a reply tells of."""
    return KINDS.get(str(reply.get("kind")), MltcpError)(f"mltcpd: {reply.get('error')}")


class Fields(dict[str, Any]):
    """A message's fields, each asked for with what it may be. Fields that nobody asks for are passed over.

    Every method raises UsageError, which names the field, what it is and what is allowed.
    """

    def text(self, name: str, default: str | None = None, most: int = 256) -> str:
        """A string of at most `most` characters."""
        value = self.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(name, f"a string of at most {most} characters")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of some words."""
        value = self.get(name, default)
        if value not in allowed:
            raise self._wrong(name, ", ".join(allowed))
        return str(value)

    def job_name(self, name: str) -> str:
        """The name of a job."""
        value = self.get(name)
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise self._wrong(name, "1 to 31 letters, digits or ._@-, the first a letter or digit")
        return value

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number, {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, f"a number, {low:g} to {high:g}")
        if not (math.isfinite(value) and low <= value <= high):
            raise self._wrong(name, f"a number, {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def _wrong(self, name: str, allowed: str) -> UsageError:
        if name not in self:
            return UsageError(f"field {name!r} is missing: {allowed}")
        return UsageError(f"field {name!r} cannot be {_shown(self[name])}: {allowed} is allowed")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "what it is"
    return text if len(text) <= 60 else text[:57] + "..."
