"""Connections that peers pass to the daemon: what was found out about them, and what is to be set."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.pacing.sock_diag import FlowKey


@dataclass(frozen=True)
class FoundFlow:
    """An established TCP connection.

    Attributes:
        position: of its descriptor among those that were passed.
        key: its addresses and cookie.
        here: whether it is in the daemon's network namespace.
        control: its congestion control.
        entry: the number of the job in the kernel that it is a flow of; 0: none.
    """

    position: int
    key: FlowKey
    here: bool
    control: str
    entry: int


@dataclass(frozen=True)
class FlowSettings:
    """The settings of a connection.

    Attributes:
        position: of its descriptor among those that were passed.
        control: its congestion control; empty: unchanged.
        priority, mark: each of which selects its HTB class; 0: unchanged.
        entry: the number of the job in the kernel that it becomes a flow of; 0: of none.
    """

    position: int
    control: str = ""
    priority: int = 0
    mark: int = 0
    entry: int = 0


@dataclass(frozen=True)
class RefusedFlow:
    """A descriptor that is no flow, or on which something cannot be set, and the reason."""

    position: int
    why: str
