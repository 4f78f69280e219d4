"""The protocol between a gate and the ranks of jobs: small binary messages on a stream socket.

A message is a kind (1 byte), three zero bytes, the length of its body (4 bytes) and the body; all numbers are unsigned
and little endian. A rank has one connection for each of its threads that runs operations. It sends HELLO first, and
then, with the sizes of the fields in bytes::

    ASK   group 8, number 8, bytes 8, ranks of the group 4, iterations so far 4    answered by GO on admission
    DONE  group 8, number 8                                                        not answered

`group` is a hash of the name of a process group; `number` counts the collective operations of that group from 1. A
rank that waits receives WAIT as a heartbeat. The bodies of HELLO, DESCRIBE and STATUS are JSON objects; they are
answered by WELCOME, whose body is one too. The sender of an invalid message receives REFUSED with a line of text and is
disconnected. `collectives/gate/gate.py` is the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from mltcp.core.errors import UsageError, shown

VERSION = 1
MOST_BYTES = 65536
"""The longest body."""

HELLO, ASK, DONE, DESCRIBE, STATUS = 1, 2, 3, 4, 5
WELCOME, GO, WAIT, REFUSED = 129, 130, 131, 132

HEADER = Struct("<BxxxI")
ASK_BODY = Struct("<QQQII")
OPERATION = Struct("<QQ")
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Ask:
    """The question of a rank whether an operation may start.

    Attributes:
        group: hash of the name of the process group.
        number: number of the operation in that group.
        nbytes: payload of the operation.
        size: number of ranks of the group.
        iterations: number of iterations that this rank has finished.
    """

    group: int
    number: int
    nbytes: int
    size: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of a connection: a rank of one run (`instance`) of a job."""

    job: str
    instance: str
    rank: int
    token: str


def message(kind: int, body: bytes = b"") -> bytes:
    """The bytes of a message."""
    return HEADER.pack(kind, len(body)) + body


def json_message(kind: int, document: Mapping[str, Any]) -> bytes:
    """The bytes of a message whose body is a JSON object."""
    return message(kind, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def take_messages(received: bytearray) -> Iterator[tuple[int, bytes]]:
    """Remove the complete messages from the front of the received bytes, and yield their kinds and bodies.

    Raises:
        UsageError: a header announces a body that is too long.
    """
    while len(received) >= HEADER.size:
        kind, length = HEADER.unpack_from(received)
        if length > MOST_BYTES:
            raise UsageError(f"message: expected at most {MOST_BYTES} bytes, got {length}")
        end = HEADER.size + length
        if len(received) < end:
            return
        body = bytes(received[HEADER.size : end])
        del received[:end]
        yield kind, body


def read_ask(body: bytes) -> Ask:
    """Parse the body of ASK.

    Raises:
        UsageError: its length is wrong, or the group has no ranks.
    """
    if len(body) != ASK_BODY.size:
        raise UsageError(f"ASK: expected {ASK_BODY.size} bytes, got {len(body)}")
    found = Ask(*ASK_BODY.unpack(body))
    if found.size < 1:
        raise UsageError("ASK: expected a group of 1 or more ranks, got 0")
    return found


def read_operation(body: bytes) -> tuple[int, int]:
    """Parse the body of DONE or GO: the group and number of an operation.

    Raises:
        UsageError: its length is wrong.
    """
    if len(body) != OPERATION.size:
        raise UsageError(f"DONE: expected {OPERATION.size} bytes, got {len(body)}")
    group, number = OPERATION.unpack(body)
    return group, number


def read_object(body: bytes) -> Mapping[str, Any]:
    """Parse a body that is a JSON object.

    Raises:
        UsageError: it is not one.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("message: expected a JSON object, got other bytes") from None
    if not isinstance(document, dict):
        raise UsageError(f"message: expected a JSON object, got {shown(document)}")
    return document


def read_hello(body: bytes) -> Hello:
    """Parse the body of HELLO.

    Raises:
        UsageError: a field is invalid, or the protocol's version is another; the message names it.
    """
    document = read_object(body)
    if document.get("version") != VERSION:
        raise UsageError(f"version: expected {VERSION}, got {shown(document.get('version'))}")
    rank = document.get("rank")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 32:
        raise UsageError(f"rank: expected a whole number from 0 on, got {shown(rank)}")
    job, instance = _name(document, "job"), _name(document, "instance")
    return Hello(job, instance, rank, _text(document.get("token", ""), "token"))


def _name(document: Mapping[str, Any], field: str) -> str:
    name = _text(document.get(field), field)
    if not name:
        raise UsageError(f"{field}: expected a name, got ''")
    return name


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise UsageError(f"{field}: expected a text of at most {LONGEST_NAME} characters, got {shown(value)}")
    return value
