"""The hosts file: the machines on which jobs run, and how ssh reaches them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from mltcp.core.quantities import parse_rate_bps

_REQUIRED = ("name", "address", "interface")
_OPTIONAL = ("slots", "gpus", "python", "ssh", "switch")
SWITCH, CORE = "switch", "core"
"""The switch of hosts that name none, and the one above all others where there are several."""

_MOST_SLOTS = 1024
# With a job's name it must fit a job's name in the kernel's map, of 31 characters.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_INTERFACE = re.compile(r"[^\s/:-][^\s/:]{1,14}")


@dataclass(frozen=True)
class RemoteHost:
    """A machine on which ranks run.

    Attributes:
        name: in tables and documents.
        address: the IPv4 address of its ranks' connections.
        interface: the network interface with that address.
        slots: the number of ranks that it runs at a time.
        gpus: CUDA identifiers of its GPUs, one per slot; empty for a host without GPUs.
        python: the interpreter there, in whose environment this package is installed.
        ssh: the destination for ssh; the address by default.
        switch: the name of the switch that it is connected to; empty: all such hosts are on one.
    """

    name: str
    address: str
    interface: str
    slots: int = 1
    gpus: tuple[str, ...] = ()
    python: str = "python3"
    ssh: str = ""
    switch: str = ""

    @property
    def destination(self) -> str:
        """The destination for ssh."""
        return self.ssh or self.address


@dataclass(frozen=True)
class HostsFile:
    """What a hosts file says.

    Attributes:
        hosts: in order.
        ssh_options: with which ssh is called for all of them.
        uplinks_bps: if there are several switches, the rate of the link of each to the core.
    """

    hosts: tuple[RemoteHost, ...]
    ssh_options: tuple[str, ...] = ()
    uplinks_bps: Mapping[str, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """The slots of all hosts."""
        return sum(host.slots for host in self.hosts)


def load_hosts_file(path: Path) -> HostsFile:
    """Read ``{"hosts": [{"name", "address", "interface", ...}], "ssh_options": [...], "uplinks": {...}}``.

    Raises:
        UsageError: the file cannot be read or is malformed; the message names the file, the field and the value.
    """
    document = read_json(path)
    try:
        return _hosts_file(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _hosts_file(document: Any) -> HostsFile:
    if not isinstance(document, Mapping) or not isinstance(document.get("hosts"), list):
        raise UsageError(f'expected {{"hosts": [...]}}, got {shown(document)}')
    _check_fields(document, ("hosts",), ("ssh_options", "uplinks"), "")
    hosts = tuple(_host(each, f"hosts[{at}]") for at, each in enumerate(document["hosts"]))
    if len(hosts) < 2:
        raise UsageError(f"hosts: expected 2 or more, got {len(hosts)}")
    for name in ("name", "address"):
        values = [getattr(host, name) for host in hosts]
        for value in values:
            if values.count(value) > 1:
                raise UsageError(f"hosts: {name}: expected distinct ones, got {value!r} more than once")
    options = _texts(document.get("ssh_options", []), "ssh_options")
    return HostsFile(hosts, options, _uplinks(document.get("uplinks", {}), hosts))


def _uplinks(document: Any, hosts: Sequence[RemoteHost]) -> Mapping[str, int]:
    """The rate of each switch's uplink, which all switches have if there are several."""
    if not isinstance(document, Mapping):
        raise UsageError(f'uplinks: expected an object, such as {{"rack1": "40gbit"}}, got {shown(document)}')
    switches = dict.fromkeys(host.switch or SWITCH for host in hosts)
    if CORE in switches:
        raise UsageError(f"hosts: switch: expected any other name than {CORE!r}, which is above all switches")
    for name in document:
        if name not in switches:
            raise UsageError(f"uplinks: expected {', '.join(switches)}, got {shown(name)}")
    needed = switches if len(switches) > 1 else ()
    for name in needed:
        if name not in document:
            raise UsageError(f"uplinks.{name}: expected the rate of its uplink, got none")
    return {
        name: parse_rate_bps(_text(document[name], f"uplinks.{name}"), field=f"uplinks.{name}", lowest=1)
        for name in needed
    }


def _host(document: Any, where: str) -> RemoteHost:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    _check_fields(document, _REQUIRED, _OPTIONAL, f"{where}.")
    gpus = _gpus(document.get("gpus", []), f"{where}.gpus")
    slots = document.get("slots", len(gpus) or 1)
    if type(slots) is not int or not 1 <= slots <= _MOST_SLOTS:
        raise UsageError(f"{where}.slots: expected 1 to {_MOST_SLOTS}, got {shown(slots)}")
    if gpus and len(gpus) != slots:
        raise UsageError(f"{where}.gpus: expected one per slot, got {len(gpus)} for {slots} slots")
    return RemoteHost(
        name=_matching(document["name"], _NAME, "1 to 15 letters, digits or ._-", f"{where}.name"),
        address=_address(document["address"], f"{where}.address"),
        interface=_matching(
            document["interface"], _INTERFACE, "a name of 2 to 15 characters", f"{where}.interface"
        ),
        slots=slots,
        gpus=gpus,
        python=_text(document.get("python", "python3"), f"{where}.python"),
        ssh=_text(document.get("ssh", document["address"]), f"{where}.ssh"),
        switch=_matching(document["switch"], _NAME, "1 to 15 letters, digits or ._-", f"{where}.switch")
        if "switch" in document
        else "",
    )


def _check_fields(
    document: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], where: str
) -> None:
    for name in document:
        if name not in required + optional:
            expected = ", ".join(required + optional)
            raise UsageError(f"{where.rstrip('.') or 'top level'}: expected {expected}, got {shown(name)}")
    for name in required:
        if name not in document:
            raise UsageError(f"{where}{name}: expected a value, got none")


def _matching(value: Any, pattern: re.Pattern[str], expected: str, where: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{where}: expected {expected}, got {shown(value)}")
    return value


def _address(value: Any, where: str) -> str:
    try:
        if not isinstance(value, str):
            raise AddressValueError(value)
        return str(IPv4Address(value))
    except AddressValueError:
        raise UsageError(f"{where}: expected an IPv4 address, got {shown(value)}") from None


def _text(value: Any, where: str) -> str:
    """A text that ssh or a remote shell does not take for an option."""
    if not isinstance(value, str) or not value or value.startswith("-") or not value.isprintable():
        raise UsageError(f"{where}: expected a text that does not begin with -, got {shown(value)}")
    return value


def _gpus(value: Any, where: str) -> tuple[str, ...]:
    if type(value) is int and 0 <= value <= _MOST_SLOTS:
        return tuple(map(str, range(value)))
    gpus = _texts(value, where)
    if len(set(gpus)) != len(gpus):
        raise UsageError(f"{where}: expected distinct ones, got {', '.join(gpus)}")
    return gpus


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise UsageError(f"{where}: expected a list of texts, got {shown(value)}")
    return tuple(value)
