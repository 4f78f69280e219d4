"""Hosts of the local engine: names, slots, the commands that enter them, and the networks and ports of jobs on them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from placement.engines.engine import EngineError

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
        for name in ("name", "address", "interface", "python"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise UsageError(f"host {self.name!r}: {name}: expected a text, got {shown(value)}")
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


# -- networks of jobs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """A host in the network of one job.

    Attributes:
        address: the address at which the job's other hosts reach it.
        interface: the interface for Gloo and NCCL.
        environment: further variables of the ranks there.
        cgroup: the directory of the cgroup (v2) that the ranks join; None: they join none.
    """

    address: str
    interface: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cgroup: str | None = None


class JobNetwork(Protocol):
    """Assigns networks to jobs; must be thread-safe."""

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoint of each rank of a job that is about to start; ``hosts`` has the host of each rank.

        Raises:
            MltcpError: no network is available.
        """

    def detach(self, job_id: str) -> None:
        """Release the endpoints of a job that has ended."""


class HostNetwork:
    """The hosts' own network: every job uses the address and interface of its host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._endpoints = {host.name: Endpoint(host.address, host.interface) for host in hosts}

    def attach(self, job_id: str, hosts: Sequence[str]) -> Sequence[Endpoint]:
        """The endpoints of the hosts, the same for every job."""
        return [self._endpoints[name] for name in hosts]

    def detach(self, job_id: str) -> None:
        """Do nothing, as nothing was allocated."""


FIRST_PORT, LAST_PORT = 20000, 29999


class Ports:
    """Ports, handed out in turn so that one is not reused at once. Not thread-safe.

    Args:
        first, last: the range.
        begin: the first port to be handed out.
    """

    def __init__(self, first: int = FIRST_PORT, last: int = LAST_PORT, begin: int | None = None) -> None:
        self._first, self._count = first, last - first + 1
        self._taken: dict[str, int] = {}
        self._next = 0 if begin is None else begin - first

    @classmethod
    def begun_anywhere(cls) -> Ports:
        """Ports that begin at a random one: engines that know nothing of each other may use the same hosts."""
        return cls(begin=FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT + 1))

    def take(self, job_id: str) -> int:
        """Allocate a port to a job.

        Raises:
            EngineError: all ports are taken.
        """
        if len(self._taken) == self._count:
            raise EngineError(f"job {job_id}: no port is free: all {self._count} are taken")
        taken = set(self._taken.values())
        while (port := self._first + self._next) in taken:
            self._next = (self._next + 1) % self._count
        self._next = (self._next + 1) % self._count
        self._taken[job_id] = port
        return port

    def release(self, job_id: str) -> None:
        """Free the port of a job."""
        self._taken.pop(job_id, None)
