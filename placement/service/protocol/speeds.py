"""Speeds of jobs as messages, and as the files that ``mltcp-placement profile-job`` writes and ``submit`` takes.

A file is a JSON object in seconds and bytes, with one of three patterns::

    {"pattern": "ring", "compute_s": 0.25, "bytes": 102228128, "inside_bytes_per_s": 1e10, "between_bytes_per_s": 6e9}
    {"pattern": "parameter-server", "worker_s": 0.6, "uplink_s": 0.2, "server_s": 0.05, "downlink_s": 0.2}
    {"pattern": "table", "step_s": {"1": 0.25, "2": 0.26, "3": 0.31, "4": 0.35}}

The bandwidths of a ring may be missing, and the pattern where the four times of a parameter server are there, as in
the file of ``mltcp-placement profile --parameter-server``. Other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from mltcp.core.quantities import LARGEST_BYTES, NS_PER_S, check_number
from placement.model.job_speed import LONGEST_NS, JobSpeed, ParameterServerSpeed, RingSpeed, TableSpeed
from placement.model.throughput import BETWEEN_BYTES_PER_S, INSIDE_BYTES_PER_S
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import invalid

PATTERNS = ("ring", "parameter-server", "table")
MOST_SIZES = 10_000

_SERVER_TIMES = ("worker_s", "uplink_s", "server_s", "downlink_s")
_BANDWIDTHS = ("inside_bytes_per_s", "between_bytes_per_s")
_SHORTEST_S = 1e-9


def speed_of(message: pb.Speed, field: str, between_bytes_per_s: int = BETWEEN_BYTES_PER_S) -> JobSpeed:
    """The model of a speed message.

    Args:
        message: as submitted or stored.
        field: its name in errors.
        between_bytes_per_s: between servers, where the message does not say.

    Raises:
        RequestError: it has no pattern, or a number that is out of range.
    """
    kind = message.WhichOneof("pattern")
    if kind is None:
        raise invalid(field, "expected ring, parameter_server or table, got none")
    values = getattr(message, kind)
    try:
        if kind == "table":
            if len(values.step_ns) > MOST_SIZES:
                raise UsageError(f"step_ns: expected at most {MOST_SIZES} times, got {len(values.step_ns)}")
            return TableSpeed(tuple(values.step_ns))
        if kind == "parameter_server":
            times = (values.worker_ns, values.uplink_ns, values.server_ns, values.downlink_ns)
            return ParameterServerSpeed(*times)
        return RingSpeed(
            values.compute_ns,
            values.bytes,
            values.inside_bytes_per_s or INSIDE_BYTES_PER_S,
            values.between_bytes_per_s or between_bytes_per_s,
        )
    except UsageError as error:
        name, _, text = str(error).partition(": ")
        raise invalid(f"{field}.{kind}.{name}", text) from None


def speed_message(speed: JobSpeed) -> pb.Speed:
    """The message of a model, the inverse of `speed_of`."""
    if isinstance(speed, TableSpeed):
        return pb.Speed(table=pb.TableSpeed(step_ns=speed.step_ns))
    if isinstance(speed, ParameterServerSpeed):
        return pb.Speed(parameter_server=pb.ParameterServerSpeed(**vars(speed)))
    assert isinstance(speed, RingSpeed), "there are three patterns"
    return pb.Speed(ring=pb.RingSpeed(**vars(speed)))


# ---------------------------------------------------------------------------------------------------------- the file


def speed_from_file(path: Path) -> pb.Speed:
    """Read a speed.

    Raises:
        UsageError: the file cannot be read, or a field is missing or invalid.
    """
    return speed_from_document(read_json(path), str(path))


def speed_from_document(document: Any, source: str) -> pb.Speed:
    """The speed in a document of the layout above.

    Raises:
        UsageError: a field is missing or invalid.
    """
    try:
        if not isinstance(document, Mapping):
            raise UsageError(f"expected an object, got {type(document).__name__}")
        pattern = document.get("pattern", PATTERNS[1] if _SERVER_TIMES[0] in document else None)
        if pattern == "ring":
            return pb.Speed(ring=_ring(document))
        if pattern == "parameter-server":
            times = {f"{name[:-2]}_ns": _ns(document, name, name == "worker_s") for name in _SERVER_TIMES}
            return pb.Speed(parameter_server=pb.ParameterServerSpeed(**times))
        if pattern == "table":
            return pb.Speed(table=pb.TableSpeed(step_ns=_table(document.get("step_s"))))
        raise UsageError(f"pattern: expected {', '.join(PATTERNS)}, got {shown(pattern)}")
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _ring(document: Mapping[str, Any]) -> pb.RingSpeed:
    size = check_number(document.get("bytes"), field="bytes", lowest=0, highest=LARGEST_BYTES)
    bandwidths = {
        name: round(check_number(document[name], field=name, lowest=1, highest=LARGEST_BYTES))
        for name in _BANDWIDTHS
        if name in document
    }
    return pb.RingSpeed(compute_ns=_ns(document, "compute_s", True), bytes=round(size), **bandwidths)


def _table(times: Any) -> list[int]:
    if not isinstance(times, Mapping) or not times:
        raise UsageError(
            f'step_s: expected the seconds of a step by the number of slots, such as {{"1": 0.25}}, got {shown(times)}'
        )
    sizes = {
        name: int(name) if name.isascii() and name.isdecimal() and len(name) < 9 else 0 for name in times
    }
    for name, size in sizes.items():
        if not 1 <= size <= MOST_SIZES or str(size) != name:
            raise UsageError(f"step_s: expected numbers of slots from 1 to {MOST_SIZES}, got {shown(name)}")
    for size in range(1, max(sizes.values()) + 1):
        if str(size) not in times:
            raise UsageError(
                f"step_s: expected a time for every number of slots up to {max(sizes.values())}, got none for {size}"
            )
    return [_ns(times, str(size), True, "step_s: ") for size in range(1, len(sizes) + 1)]


def _ns(document: Mapping[str, Any], name: str, above_zero: bool, where: str = "") -> int:
    if name not in document:
        raise UsageError(f"{where}{name}: expected a number of seconds, got none")
    lowest = _SHORTEST_S if above_zero else 0.0
    return round(
        NS_PER_S
        * check_number(document[name], field=f"{where}{name}", lowest=lowest, highest=LONGEST_NS / NS_PER_S)
    )
