"""Hosts of the local engine: names, addresses, slots, and the commands that enter them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json

_FIELDS = ("name", "address", "interface", "enter", "slots", "gpus", "python")
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class Host:
    """A machine, or an environment that acts as one, such as a network namespace.

    Attributes:
        name: the name in placements.
        address: the address at which other hosts reach its ranks.
        interface: the network interface with that address.
        enter: the command prefix that runs a command there: empty for this machine, ``("ssh", "a3")``,
            ``("nsenter", "--net=/run/netns/a3")``. It must pass standard input and output through.
        slots: the number of ranks it runs at a time.
        gpus: CUDA identifiers of its GPUs, one per slot; empty for a host without GPUs.
        python: the interpreter there, with torch and this package.

    Raises:
        UsageError: a field is empty or out of range, or the number of GPUs is not that of the slots.
    """

    name: str
    address: str
    interface: str
    enter: tuple[str, ...] = ()
    slots: int = 1
    gpus: tuple[str, ...] = ()
    python: str = sys.executable

    def __post_init__(self) -> None:
        for field in ("name", "address", "interface", "python"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise UsageError(f"host {self.name!r}: {field}: expected a text, got {shown(value)}")
        if type(self.slots) is not int or not 1 <= self.slots <= _MOST_SLOTS:
            raise UsageError(
                f"host {self.name!r}: slots: expected 1 to {_MOST_SLOTS}, got {shown(self.slots)}"
            )
        if self.gpus and len(self.gpus) != self.slots:
            raise UsageError(
                f"host {self.name!r}: gpus: expected one per slot, got {len(self.gpus)} for {self.slots} slots"
            )
        if len(set(self.gpus)) != len(self.gpus):
            raise UsageError(f"host {self.name!r}: gpus: expected distinct ones, got {', '.join(self.gpus)}")


def load_hosts(path: Path) -> tuple[Host, ...]:
    """Read hosts from JSON: ``{"hosts": [{"name", "address", "interface", "enter", "slots", "gpus", "python"}]}``.

    ``gpus`` is a list of CUDA identifiers, or a number; it is the default of ``slots``. All fields but ``name``,
    ``address`` and ``interface`` are optional.

    Raises:
        UsageError: the file cannot be read or is malformed.
    """
    document = read_json(path)
    try:
        return hosts_from_document(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def hosts_from_document(document: Any) -> tuple[Host, ...]:
    """Hosts of a JSON document in the format of :func:`load_hosts`."""
    listed = document.get("hosts") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f'hosts: expected {{"hosts": [...]}} with at least one host, got {shown(document)}')
    return checked_hosts([_host(each, f"hosts[{number}]") for number, each in enumerate(listed)])


def checked_hosts(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts, whose names must be distinct.

    Raises:
        UsageError: two hosts have the same name.
    """
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"hosts: expected distinct names, got {name!r} more than once")
    return tuple(hosts)


def _host(document: Any, where: str) -> Host:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    unknown = [name for name in document if name not in _FIELDS]
    if unknown:
        raise UsageError(f"{where}: expected the fields {', '.join(_FIELDS)}, got {unknown[0]!r}")
    missing = [name for name in _FIELDS[:3] if name not in document]
    if missing:
        raise UsageError(f"{where}.{missing[0]}: expected a text, got none")
    fields = dict(document)
    fields["enter"] = _texts(document.get("enter", []), f"{where}.enter")
    fields["gpus"] = _gpus(document.get("gpus", []), f"{where}.gpus")
    if fields["gpus"]:
        fields.setdefault("slots", len(fields["gpus"]))
    return Host(**fields)


def _gpus(value: Any, where: str) -> tuple[str, ...]:
    if type(value) is int and 0 <= value <= _MOST_SLOTS:
        return tuple(map(str, range(value)))
    return _texts(value, where)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise UsageError(f"{where}: expected a list of texts, got {shown(value)}")
    return tuple(value)
