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
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from struct import Struct
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json

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
class RankHello:
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


def read_hello(body: bytes) -> RankHello:
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
    job, instance = _name_of(document, "job"), _name_of(document, "instance")
    return RankHello(job, instance, rank, _text(document.get("token", ""), "token"))


def _name_of(document: Mapping[str, Any], field: str) -> str:
    name = _text(document.get(field), field)
    if not name:
        raise UsageError(f"{field}: expected a name, got ''")
    return name


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise UsageError(f"{field}: expected a text of at most {LONGEST_NAME} characters, got {shown(value)}")
    return value


# ------------------------------------------------------------------------------------------------- documents of jobs


SHARED = "*"
"""The link that all jobs without a description share."""

_FIELDS = ("job", "links", "iterations", "compute_s", "gpus")
_FASTEST = 1_000_000


@dataclass(frozen=True)
class GateJob:
    """The description of a job.

    Attributes:
        name: the job's name.
        links: the links that it uses; empty: it shares no link and never waits.
        iterations: I_k, its total number of iterations; None: unknown.
        compute_ns: compute time of one iteration.
        gpus: |G(J_k)|, its number of workers.
    """

    name: str
    links: tuple[str, ...] = (SHARED,)
    iterations: int | None = None
    compute_ns: int = 0
    gpus: int = 1

    def service_left_ns(self, finished: int) -> int | None:
        """The remaining compute time, summed over its workers, by which SRSF ranks jobs (IV-A); None: unknown."""
        left = self._iterations_left(finished)
        return None if left is None else left * self.compute_ns * self.gpus

    def time_left_ns(self, finished: int, transfer_ns: float) -> float | None:
        """The remaining time alone, by which SRTF-Yield ranks jobs; None: unknown.

        Args:
            finished: iterations.
            transfer_ns: what the transfers of an iteration take.
        """
        left = self._iterations_left(finished)
        return None if left is None else left * (self.compute_ns + transfer_ns)

    def _iterations_left(self, finished: int) -> int | None:
        return None if self.iterations is None else max(0, self.iterations - finished)


@dataclass(frozen=True)
class GateLinks:
    """The jobs described at the start, and the relative speeds of links whose speed is not 1."""

    jobs: tuple[GateJob, ...] = ()
    speeds: Mapping[str, Fraction] = field(default_factory=dict)


def load_links(path: Path) -> GateLinks:
    """Read ``{"jobs": {NAME: {"links": [...], ...}}, "links": {NAME: {"speed": 1.0}}}``.

    Raises:
        UsageError: the file cannot be read or has an invalid field, which the message names.
    """
    document = read_json(path)
    try:
        return links_from(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def links_from(document: object) -> GateLinks:
    """The jobs and links of a document.

    Raises:
        UsageError: a field is invalid; the message names it.
    """
    known = _object(document, "the document", ("jobs", "links"))
    jobs = _object(known.get("jobs", {}), "jobs")
    links = _object(known.get("links", {}), "links")
    return GateLinks(
        tuple(
            job_from({"job": name, **_object(each, f"jobs.{name}")}, f"jobs.{name}")
            for name, each in jobs.items()
        ),
        {name: _speed(each, f"links.{name}") for name, each in links.items()},
    )


def job_from(document: object, where: str = "job") -> GateJob:
    """One job of a document: its name and, optionally, links, iterations, compute_s and gpus.

    Raises:
        UsageError: a field is invalid; the message names it.
    """
    known = _object(document, where, _FIELDS)
    iterations = known.get("iterations")
    return GateJob(
        name=_name(known.get("job"), f"{where}.job"),
        links=_links(known.get("links", [SHARED]), f"{where}.links"),
        iterations=None if iterations is None else _whole(iterations, f"{where}.iterations", 0),
        compute_ns=round(_number(known.get("compute_s", 0), f"{where}.compute_s") * 1e9),
        gpus=_whole(known.get("gpus", 1), f"{where}.gpus", 1),
    )


def job_document(job: GateJob) -> dict[str, Any]:
    """The document of a job, the inverse of `job_from`."""
    known = {} if job.iterations is None else {"iterations": job.iterations}
    return {
        "job": job.name, "links": list(job.links), "compute_s": job.compute_ns / 1e9, "gpus": job.gpus, **known
    }  # fmt: skip


def _object(document: object, where: str, allowed: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    for name in document:
        if allowed is not None and name not in allowed:
            raise UsageError(f"{where}: expected the fields {', '.join(allowed)}, got {shown(name)}")
    return document


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise UsageError(f"{where}: expected a name of 1 to {LONGEST_NAME} characters, got {shown(value)}")
    return value


def _links(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where}: expected a list of names, got {shown(value)}")
    return tuple(dict.fromkeys(_name(each, f"{where}[{at}]") for at, each in enumerate(value)))


def _whole(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
        raise UsageError(f"{where}: expected a whole number from {least} to {10**9}, got {shown(value)}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise UsageError(f"{where}: expected a number from 0 to 1e9, got {shown(value)}")
    return float(value)


def _speed(document: object, where: str) -> Fraction:
    speed = _number(_object(document, where, ("speed",)).get("speed", 1), f"{where}.speed")
    if not 0 < speed <= _FASTEST:
        raise UsageError(f"{where}.speed: expected more than 0 and at most {_FASTEST}, got {speed}")
    return Fraction(speed)
