"""Request errors: a code and the offending field."""

from __future__ import annotations

from enum import Enum

from mltcp.core.errors import MltcpError


class ErrorCode(Enum):
    """The reason of a request error; `servicer.CODES` has the gRPC status code of each."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    EXISTS = "exists"
    FULL = "full"
    STATE = "state"
    DENIED = "denied"


class RequestError(MltcpError):
    """A request was refused; no state has changed.

    Attributes:
        code: the reason.
        field: the offending field, such as ``job.gpus`` or ``servers[3].nic_bps``; the message begins with it.
    """

    def __init__(self, code: ErrorCode, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.code = code
        self.field = field


def invalid(field: str, text: str) -> RequestError:
    """The error for a value that is invalid in any state of the service."""
    return RequestError(ErrorCode.INVALID, field, text)
