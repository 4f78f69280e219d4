"""JSON lines for the dataclasses that the launcher and the agents of hosts exchange.

Only the classes that are registered here are made from a line, so that neither side can have the other run code, as
unpickling would.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError

_CLASS, _VALUE = "$", "value"
LONGEST_LINE_BYTES = 64 << 20


class CodecError(MltcpError):
    """A line that is no message of this version."""


class Codec:
    """Converts instances of these dataclasses and enumerations, and what they hold, to lines and back."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {each.__name__: each for each in classes}

    @property
    def schema(self) -> str:
        """A digest of the names and fields of all classes: equal on two hosts only if they understand each other."""
        described = sorted(f"{name}({','.join(_fields(each))})" for name, each in self._classes.items())
        return hashlib.sha256(";".join(described).encode()).hexdigest()[:16]

    def line(self, value: object) -> bytes:
        """The value as one line."""
        return json.dumps(self._plain(value), separators=(",", ":")).encode() + b"\n"

    def value(self, line: bytes) -> Any:
        """The value of a line.

        Raises:
            CodecError: it is malformed.
        """
        try:
            return self._made(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError, MltcpError) as error:
            raise CodecError(f"expected a message, got {line[:60]!r}: {error}") from None

    def _plain(self, value: object) -> object:
        if isinstance(value, Enum):
            return {_CLASS: self._name(value), _VALUE: value.name}
        if dataclasses.is_dataclass(value):
            fields = {name: self._plain(getattr(value, name)) for name in _fields(type(value))}
            return {_CLASS: self._name(value), **fields}
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        if isinstance(value, bytes | Path):
            text = value.hex() if isinstance(value, bytes) else str(value)
            return {_CLASS: "bytes" if isinstance(value, bytes) else "Path", _VALUE: text}
        if value is None or isinstance(value, str | int | float):
            return value
        raise TypeError(f"{type(value).__name__} cannot be sent to a host")

    def _name(self, value: object) -> str:
        name = type(value).__name__
        if self._classes.get(name) is not type(value):
            raise TypeError(f"{name} cannot be sent to a host")
        return name

    def _made(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return tuple(self._made(each) for each in plain)
        if not isinstance(plain, dict):
            return plain
        name = plain.pop(_CLASS)
        if name == "bytes":
            return bytes.fromhex(plain[_VALUE])
        if name == "Path":
            return Path(plain[_VALUE])
        made = self._classes[name]
        if issubclass(made, Enum):
            return made[plain[_VALUE]]
        return made(**{field: self._made(each) for field, each in plain.items()})


def _fields(made: type) -> list[str]:
    if issubclass(made, Enum):
        return [each.name for each in made]
    assert dataclasses.is_dataclass(made)
    return [field.name for field in dataclasses.fields(made)]
