"""Conversion of messages to JSON documents, and of JSON files to clusters, jobs and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from mltcp.core.demand import demand_from_document
from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import profile_message
from placement.service.protocol.speeds import speed_from_document


def document(message: Message) -> dict[str, Any]:
    """The JSON document of a message: field names as in the proto file, integers as numbers, no unset optional fields.

    protobuf's own JSON mapping is not used because it writes 64-bit integers as strings.
    """
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def cluster_from_file(path: Path) -> tuple[tuple[pb.Server, ...], tuple[pb.Link, ...]]:
    """Read servers and links from ``{"servers": [...], "links": [...]}`` with the fields of the messages.

    Raises:
        UsageError: the file cannot be read or is malformed.
    """
    return cluster_from_document(_read(path), str(path))


def cluster_from_document(
    read: Mapping[str, Any], source: str
) -> tuple[tuple[pb.Server, ...], tuple[pb.Link, ...]]:
    """Servers and links of such a document.

    Raises:
        UsageError: it is malformed.
    """
    for name in read:
        if name not in ("servers", "links"):
            raise UsageError(f"{source}: expected the fields servers and links, got {name!r}")
    servers, links = _list(read, "servers", source), _list(read, "links", source)
    return (
        tuple(
            _parsed(each, pb.Server(), f"{source}: servers[{place}]") for place, each in enumerate(servers)
        ),
        tuple(_parsed(each, pb.Link(), f"{source}: links[{place}]") for place, each in enumerate(links)),
    )


def jobs_from_file(path: Path) -> list[pb.Job]:
    """Read one job, or ``{"jobs": [...]}``, with the fields of the message.

    A profile is a document of the ``mltcp`` backend, or ``{"phases": [{"duration_s", "bandwidth_bps"}]}``; a speed is
    one of `protocol.speeds`.

    Raises:
        UsageError: the file cannot be read or is malformed.
    """
    read = _read(path)
    listed = _list(read, "jobs", str(path)) if "jobs" in read else [read]
    return [_job(each, f"{path}: jobs[{place}]") for place, each in enumerate(listed)]


def profile_from_file(path: Path) -> pb.Profile:
    """Read a profile, in the format of `jobs_from_file`.

    Raises:
        UsageError: the file cannot be read or is malformed.
    """
    return profile_message(demand_from_document(_read(path), str(path)))


def _job(listed: Any, where: str) -> pb.Job:
    _check_object(listed, where)
    plain = {name: value for name, value in listed.items() if name not in ("profile", "speed")}
    job = _parsed(plain, pb.Job(), where)
    if "profile" in listed:
        job.profile.CopyFrom(profile_message(demand_from_document(listed["profile"], f"{where}.profile")))
    if "speed" in listed:
        job.speed.CopyFrom(speed_from_document(listed["speed"], f"{where}.speed"))
    return job


def _parsed(listed: Any, message: Any, where: str) -> Any:
    _check_object(listed, where)
    try:
        return json_format.ParseDict(dict(listed), message)
    except json_format.ParseError as error:
        raise UsageError(f"{where}: {str(error).splitlines()[0]}") from None


def _read(path: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = read_json(path)
    _check_object(read, str(path))
    return read


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected an object, got {type(value).__name__}")


def _list(read: Mapping[str, Any], name: str, source: str) -> list[Any]:
    listed = read.get(name, [])
    if not isinstance(listed, list):
        raise UsageError(f"{source}: {name}: expected a list, got {type(listed).__name__}")
    return listed


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return document(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
