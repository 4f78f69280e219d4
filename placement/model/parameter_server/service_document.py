"""Service times as a JSON document, such as `mltcp-placement profile --parameter-server` writes."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from placement.model.parameter_server.service_times import ServiceTimes


def load_service(path: Path) -> ServiceTimes:
    """Read service times from a file with ``worker_s``, ``uplink_s``, ``server_s`` and ``downlink_s``.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or a time is missing or invalid.
    """
    document = read_json(path)
    try:
        return service_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def service_of(document: Any) -> ServiceTimes:
    """The service times in a document; its other fields do not matter.

    Raises:
        UsageError: it is no object, or a time is missing or invalid.
    """
    if not isinstance(document, dict):
        raise UsageError(f"profile: expected an object, got {shown(document)}")
    names = [field.name for field in fields(ServiceTimes)]
    for name in names:
        if name not in document:
            raise UsageError(f"{name}: expected a number of seconds, got none")
    return ServiceTimes(*(document[name] for name in names))


def service_document(service: ServiceTimes) -> dict[str, float]:
    """The fields that `service_of` reads."""
    return asdict(service)
