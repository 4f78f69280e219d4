"""What a gate and the ranks of jobs say to each other: small binary messages on a stream socket.

A message is a kind (a byte), three bytes of 0, the length of its body (4 bytes) and the body; all numbers are little
endian and without sign. A rank has one connection for each of its threads that has operations, and begins each with
HELLO. What it says then::

    ASK   group 8, number 8, bytes 8, ranks of the group 4, iterations so far 4    answered by GO, some time
    DONE  group 8, number 8                                                        not answered

`group` stands for the name of a process group, `number` is the operation's among the collective operations of that
group, from 1 on. While a rank waits it hears WAIT every now and then, and so knows that the gate lives. HELLO, DESCRIBE
and STATUS have a JSON object for a body and are answered by WELCOME, which has one too. Whoever sends what is not
allowed gets REFUSED, with a line of text, and is disconnected. `collectives/gate/gate.py` is the other end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from mltcp.core.errors import UsageError

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
    """A rank is about to pass an operation on.

    Attributes:
        group: stands for the name of its process group.
        number: of the operation in that group.
        nbytes: its payload.
        size: how many ranks the group has.
        iterations: how many iterations of the job this rank has finished.
    """

    group: int
    number: int
    nbytes: int
    size: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a connection belongs to: a rank of one run (`instance`) of a job."""

    job: str
    instance: str
    rank: int
    token: str


def message(kind: int, body: bytes = b"") -> bytes:
    """A message as it goes over the socket."""
    return HEADER.pack(kind, len(body)) + body


def json_message(kind: int, document: Mapping[str, Any]) -> bytes:
    """A message whose body is a JSON object."""
    return message(kind, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def take_messages(received: bytearray) -> Iterator[tuple[int, bytes]]:
    """The whole messages at the beginning of what was received, which are taken out of it.

    Raises:
        UsageError: one says that it is longer than any may be.
    """
    while len(received) >= HEADER.size:
        kind, length = HEADER.unpack_from(received)
        if length > MOST_BYTES:
            raise UsageError(f"a message of {length} bytes: at most {MOST_BYTES} are allowed")
        end = HEADER.size + length
        if len(received) < end:
            return
        body = bytes(received[HEADER.size : end])
        del received[:end]
        yield kind, body


def read_ask(body: bytes) -> Ask:
    """The question of a rank.

    Raises:
        UsageError: it is of another length, or of a group without ranks.
    """
    if len(body) != ASK_BODY.size:
        raise UsageError(f"a question of {len(body)} bytes: {ASK_BODY.size} are allowed")
    found = Ask(*ASK_BODY.unpack(body))
    if found.size < 1:
        raise UsageError("a question of a group of 0 ranks: 1 or more is allowed")
    return found


def read_operation(body: bytes) -> tuple[int, int]:
    """The group and the number of an operation that is done.

    Raises:
        UsageError: it is of another length.
    """
    if len(body) != OPERATION.size:
        raise UsageError(f"an operation of {len(body)} bytes: {OPERATION.size} are allowed")
    group, number = OPERATION.unpack(body)
    return group, number


def read_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body.

    Raises:
        UsageError: it is none.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("the message is no JSON") from None
    if not isinstance(document, dict):
        raise UsageError("the message is no JSON object")
    return document


def read_hello(body: bytes) -> Hello:
    """Who a connection belongs to.

    Raises:
        UsageError: a field that cannot be, or another version; the message names it.
    """
    document = read_object(body)
    if document.get("version") != VERSION:
        raise UsageError(f"version {document.get('version')!r} of the protocol: {VERSION} is allowed")
    rank = document.get("rank")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 32:
        raise UsageError(f"rank is {rank!r}: a whole number from 0 on is allowed")
    job, instance = _name(document, "job"), _name(document, "instance")
    return Hello(job, instance, rank, _text(document.get("token", ""), "token"))


def _name(document: Mapping[str, Any], field: str) -> str:
    name = _text(document.get(field), field)
    if not name:
        raise UsageError(f"{field} is empty: a name is allowed")
    return name


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise UsageError(f"{field} is no text of at most {LONGEST_NAME} characters")
    return value
