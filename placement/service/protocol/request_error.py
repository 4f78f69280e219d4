"""What the service says no to: which kind of no, and the field it is about."""

from __future__ import annotations

from enum import Enum

from mltcp.core.errors import MltcpError


class Kind(Enum):
    """Why something is refused; each is a gRPC status code (`server.CODES`)."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    EXISTS = "exists"
    FULL = "full"
    STATE = "state"


class Refused(MltcpError):
    """A request that is refused, with nothing changed.

    Attributes:
        kind: why.
        field: of the request, as in ``job.gpus`` or ``servers[3].nic_bps``; the message begins with it.
    """

    def __init__(self, kind: Kind, field: str, text: str) -> None:
        super().__init__(f"{field} {text}")
        self.kind = kind
        self.field = field


def invalid(field: str, text: str) -> Refused:
    """A value that is never allowed."""
    return Refused(Kind.INVALID, field, text)
