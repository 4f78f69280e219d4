"""Messages as JSON documents, and clusters and jobs from JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from mltcp.core.demand import demand_from_document
from mltcp.core.errors import UsageError
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import profile_message


def document(message: Message) -> dict[str, Any]:
    """A message with the names of its fields as they are, whole numbers as numbers, and every field that has a value.

    (protobuf's own JSON has 64-bit numbers as text.)
    """
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def cluster_from_file(path: Path) -> tuple[tuple[pb.Server, ...], tuple[pb.Link, ...]]:
    """Servers and links in a file: ``{"servers": [...], "links": [...]}`` with the fields of the messages.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    read = _read(path)
    for name in read:
        if name not in ("servers", "links"):
            raise UsageError(f"{path}: {name!r} is unknown: servers and links are allowed")
    servers, links = _list(read, "servers", path), _list(read, "links", path)
    return (
        tuple(_parsed(each, pb.Server(), f"{path}: servers[{place}]") for place, each in enumerate(servers)),
        tuple(_parsed(each, pb.Link(), f"{path}: links[{place}]") for place, each in enumerate(links)),
    )


def jobs_from_file(path: Path) -> list[pb.Job]:
    """Jobs in a file: one, or ``{"jobs": [...]}``, with the fields of the message.

    A profile is one as the ``mltcp`` backend writes it, or ``{"phases": [{"duration_s", "bandwidth_bps"}]}``.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    read = _read(path)
    listed = _list(read, "jobs", path) if "jobs" in read else [read]
    return [_job(each, f"{path}: jobs[{place}]") for place, each in enumerate(listed)]


def profile_from_file(path: Path) -> pb.Profile:
    """The profile in a file, as in `jobs_from_file`.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    return profile_message(demand_from_document(_read(path), str(path)))


def _job(listed: Any, where: str) -> pb.Job:
    if not isinstance(listed, Mapping):
        raise UsageError(f"{where}: must be an object")
    job = _parsed({name: value for name, value in listed.items() if name != "profile"}, pb.Job(), where)
    if "profile" in listed:
        job.profile.CopyFrom(profile_message(demand_from_document(listed["profile"], f"{where}.profile")))
    return job


def _parsed(listed: Any, message: Any, where: str) -> Any:
    if not isinstance(listed, Mapping):
        raise UsageError(f"{where}: must be an object")
    try:
        return json_format.ParseDict(dict(listed), message)
    except json_format.ParseError as error:
        raise UsageError(f"{where}: {str(error).splitlines()[0]}") from None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(read, Mapping):
        raise UsageError(f"{path}: must be an object")
    return read


def _list(read: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    listed = read.get(name, [])
    if not isinstance(listed, list):
        raise UsageError(f"{path}: {name} must be a list")
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
