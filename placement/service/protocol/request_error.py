"""What the service says no to: which kind of no, and the field it is about."""

from __future__ import annotations

from enum import Enum

from mltcp.core.errors import MltcpError


class ErrorCode(Enum):
    """Why something is refused; each is a gRPC status code (`server.CODES`)."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    EXISTS = "exists"
    FULL = "full"
    STATE = "state"


class RequestError(MltcpError):
    """A request that is refused, with nothing changed.

    Attributes:
        code: why.
        field: of the request, as in ``job.gpus`` or ``servers[3].nic_bps``; the message begins with it.
    """

    def __init__(self, code: ErrorCode, field: str, text: str) -> None:
        super().__init__(f"{field} {text}")
        self.code = code
        self.field = field


def invalid(field: str, text: str) -> RequestError:
    """A value that is never allowed."""
    return RequestError(ErrorCode.INVALID, field, text)
