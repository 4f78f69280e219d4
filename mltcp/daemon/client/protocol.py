"""The daemon's protocol: one JSON object in each packet of a Unix socket (SOCK_SEQPACKET).

A request has `version`, `request` and that request's fields, and may carry descriptors (SCM_RIGHTS). It gets one reply:
``{"version": 1, "ok": true, ...}``, or ``{"version": 1, "ok": false, "error": "one line", "kind": ...}``. A reply that
does not fit one packet is sent in several; all but the last have ``"more": true``. The reply to a request that has an
`id` has the same one, so that a late reply is not taken for that to the next request. After `subscribe`, the daemon
also sends packets with ``"event"``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError, shown

VERSION = 1
REQUEST_ID = "id"
"""The field with the number of a request on its connection."""

MOST_BYTES = 65536
"""The longest packet."""

MOST_DESCRIPTORS = 64
"""The most descriptors that one request may carry."""

SOCKET = Path("/run/mltcp/mltcpd.sock")
"""The default path of the daemon's socket."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,30}")
"""The name of a job; the kernel's map has space for 31 characters."""

KINDS: dict[str, type[MltcpError]] = {
    "usage": UsageError,
    "failed": MltcpError,
    "unavailable": NotAvailableError,
}


class DeniedError(MltcpError):
    """The peer lacks the permission for its request."""


KINDS["denied"] = DeniedError


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a packet.

    Raises:
        UsageError: it is too long.
    """
    packet = json.dumps({"version": VERSION, **message}, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > MOST_BYTES:
        raise UsageError(f"message: expected at most {MOST_BYTES} bytes, got {len(packet)}")
    return packet


def decode(packet: bytes) -> Fields:
    """Decode a packet.

    Raises:
        UsageError: it is not a JSON object, or of another version.
    """
    try:
        found = json.loads(packet)
    except (ValueError, RecursionError):
        raise UsageError("message: expected a JSON object, got text that is not JSON") from None
    if not isinstance(found, dict):
        raise UsageError(f"message: expected a JSON object, got {shown(found)}")
    fields = Fields(found)
    if fields.get("version") != VERSION:
        raise UsageError(f"version: expected {VERSION}, got {shown(fields.get('version'))}")
    return fields


def error_reply(error: MltcpError) -> dict[str, Any]:
    """The reply to a request that has failed."""
    kind = next((name for name, kind in KINDS.items() if type(error) is kind), "failed")
    return {"ok": False, "error": " ".join(str(error).split()), "kind": kind}


def raised_from(reply: Mapping[str, Any]) -> MltcpError:
    """The error of a reply."""
    return KINDS.get(str(reply.get("kind")), MltcpError)(f"mltcpd: {reply.get('error')}")


class Fields(dict[str, Any]):
    """The fields of a message, with accessors that check them. Unknown fields are ignored.

    Every accessor raises UsageError, which names the field, the expected value and the given one.
    """

    def text(self, name: str, default: str | None = None, most: int = 256) -> str:
        """A string of at most `most` characters."""
        value = self.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(name, f"a string of at most {most} characters")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of several words."""
        value = self.get(name, default)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
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
            raise self._wrong(name, f"a whole number between {low} and {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, f"a number between {low:g} and {high:g}")
        if not (math.isfinite(value) and low <= value <= high):
            raise self._wrong(name, f"a number between {low:g} and {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def _wrong(self, name: str, expected: str) -> UsageError:
        given = shown(self[name]) if name in self else "nothing"
        return UsageError(f"{name}: expected {expected}, got {given}")
