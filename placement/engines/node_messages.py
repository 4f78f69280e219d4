"""Messages of a launcher (:mod:`placement.engines.node`) to its engine: one a line, after the number of the launch.

The engine draws the number and hands it to the launcher, so that whatever a login shell or a command that enters the
host prints is no message. The messages are nevertheless those of strangers: jobs of that host may run as the account
of the launcher.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mltcp.core.errors import MltcpError, shown
from mltcp.core.one_line import one_line

LONGEST_BYTES = 1 << 16
_LONGEST_LOG_LINE = 4096
_LONGEST_BOOT = 64


class HostMessageError(MltcpError):
    """What a host sent is no message of a launcher, or none that it could send now."""


@dataclass(frozen=True)
class LauncherHello:
    """The launcher waits for the instruction, on the machine with this boot id and in this pid namespace."""

    boot: str
    pids: int


@dataclass(frozen=True)
class Beat:
    """The launcher has heard of the engine."""


@dataclass(frozen=True)
class NodeStarted:
    """The launcher has started torchrun."""


@dataclass(frozen=True)
class RankEnded:
    """A rank has ended: its wait status, whether torchrun had sent it a signal, and the last line of its log."""

    rank: int
    status: int
    signalled: bool
    last_log_line: str


@dataclass(frozen=True)
class NodeEnded:
    """torchrun and all that it had started have ended: its wait status, and the last line of its log."""

    status: int
    last_log_line: str


NodeMessage = LauncherHello | Beat | NodeStarted | RankEnded | NodeEnded

_KINDS: Mapping[str, type[NodeMessage]] = {
    "hello": LauncherHello,
    "beat": Beat,
    "started": NodeStarted,
    "rank": RankEnded,
    "ended": NodeEnded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def line_of(launch: str, message: NodeMessage) -> bytes:
    """The line of a message."""
    return f"{launch} {json.dumps({'event': _NAMES[type(message)], **vars(message)})}\n".encode()


def message_of(text: bytes) -> NodeMessage:
    """The message in a line, after the number of the launch.

    Raises:
        HostMessageError: it is none.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise HostMessageError(f"expected a message of its launcher, got {shown(text)}")
    event = document.pop("event", None)
    kind = _KINDS.get(event) if isinstance(event, str) else None
    if kind is None:
        raise HostMessageError(f"event: expected one of {', '.join(_KINDS)}, got {shown(event)}")
    wanted = tuple(kind.__dataclass_fields__)
    if set(document) != set(wanted):
        raise HostMessageError(
            f"{event}: expected the fields {', '.join(wanted) or 'of none'}, got {shown(sorted(document))}"
        )
    return kind(**{name: _FIELDS[name](value, f"{event}.{name}") for name, value in document.items()})


def _status(value: Any, where: str) -> int:
    if type(value) is not int or not -64 <= value <= 255:
        raise HostMessageError(f"{where}: expected -64 to 255, got {shown(value)}")
    return value


def _number(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise HostMessageError(f"{where}: expected 0 or more, got {shown(value)}")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise HostMessageError(f"{where}: expected true or false, got {shown(value)}")
    return value


def _boot(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_BOOT:
        raise HostMessageError(f"{where}: expected the identity of a machine, got {shown(value)}")
    return value


def _log_line(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise HostMessageError(f"{where}: expected a text, got {shown(value)}")
    return one_line(value[:_LONGEST_LOG_LINE])


_FIELDS: Mapping[str, Callable[[Any, str], Any]] = {
    "boot": _boot,
    "pids": _number,
    "rank": _number,
    "status": _status,
    "signalled": _flag,
    "last_log_line": _log_line,
}
