"""The failures of a deciding policy, which are counted by reason."""

from __future__ import annotations

from enum import Enum

from mltcp.core.errors import MltcpError


class FailureReason(Enum):
    """Why a policy gave no assignment that can be carried out."""

    TIME_OUT = "time-out"
    ERROR = "error"
    INFEASIBLE = "infeasible"
    CHECKPOINT = "checkpoint"
    ENDED = "process ended"
    STARTING = "process starting"


class PolicyFailure(MltcpError):
    """A policy did not decide.

    Attributes:
        reason: the kind of the failure.
    """

    def __init__(self, reason: FailureReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
