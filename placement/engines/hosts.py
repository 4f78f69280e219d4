"""The hosts of an engine that enters them by itself: what they are called, how they are entered, what they have."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError

_FIELDS = ("name", "address", "interface", "enter", "slots", "gpus", "python")
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class Host:
    """A machine, or something like one, such as a network namespace.

    Attributes:
        name: as placements call it.
        address: at which the other hosts reach its ranks.
        interface: the network interface with that address.
        enter: the command that runs another one there: empty for this machine, ``("ssh", "a3")``,
            ``("nsenter", "--net=/run/netns/a3")``. It must hand standard input and output through.
        slots: how many ranks it takes at a time.
        gpus: what CUDA calls its GPUs, one a slot; empty for a host that only has processors.
        python: the interpreter there, with torch and this package.

    Raises:
        UsageError: a field is empty or out of its range, or there are GPUs, but not one a slot.
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
                raise UsageError(f"host {self.name!r}: {field} is {value!r}: a text is needed")
        if type(self.slots) is not int or not 1 <= self.slots <= _MOST_SLOTS:
            raise UsageError(f"host {self.name!r}: slots is {self.slots!r}: 1 to {_MOST_SLOTS} are allowed")
        if self.gpus and len(self.gpus) != self.slots:
            raise UsageError(
                f"host {self.name!r}: {len(self.gpus)} gpus for {self.slots} slots: one a slot is allowed"
            )
        if len(set(self.gpus)) != len(self.gpus):
            raise UsageError(f"host {self.name!r}: gpus has one more than once: each is allowed once")


def load_hosts(path: Path) -> tuple[Host, ...]:
    """Read hosts from JSON: ``{"hosts": [{"name", "address", "interface", "enter", "slots", "gpus", "python"}]}``.

    ``gpus`` is a list of what CUDA calls them, or their number; ``slots`` is theirs where it is not given. All but
    ``name``, ``address`` and ``interface`` may be left out.

    Raises:
        UsageError: the file cannot be read, or does not hold hosts.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    try:
        return hosts_from_document(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def hosts_from_document(document: Any) -> tuple[Host, ...]:
    """As :func:`load_hosts`, from what JSON holds."""
    listed = document.get("hosts") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise UsageError('hosts: {"hosts": [...]} with at least one host is needed')
    return checked_hosts([_host(each, f"hosts[{number}]") for number, each in enumerate(listed)])


def checked_hosts(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts, if no name is there twice.

    Raises:
        UsageError: one is.
    """
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"hosts: the name {name!r} is used more than once")
    return tuple(hosts)


def _host(document: Any, where: str) -> Host:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where} is {document!r}: an object is needed")
    unknown = [name for name in document if name not in _FIELDS]
    if unknown:
        raise UsageError(f"{where}: {unknown[0]!r} is unknown: {', '.join(_FIELDS)} are allowed")
    missing = [name for name in _FIELDS[:3] if name not in document]
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing")
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
        raise UsageError(f"{where} is {value!r}: a list of texts is allowed")
    return tuple(value)
