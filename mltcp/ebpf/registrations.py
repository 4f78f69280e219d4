"""Finds the congestion controls of this project among all struct_ops maps of the kernel.

A registered control needs nobody to hold it: its struct_ops map holds itself, the map holds its programs, and these
hold the maps that they use. So the kernel is the register, and nothing is pinned. A control is found whatever mount
namespace or container it was loaded in, no directory has to be trusted, and what an unregistered control used is gone
with the last of its sockets. A link would need kernel 6.4, and a pin, which goes with the mount namespace that it was
made in.

A struct_ops map is one of this project if its programs hold the section with the build of their object
(``build.bpf.h``). Before objects had builds, programs held the map of flows, or the control was pinned by root.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mltcp.core.cgroups import BPFFS
from mltcp.core.errors import NotAvailableError
from mltcp.ebpf import build
from mltcp.ebpf.libbpf import (
    MAP_TYPE_STRUCT_OPS,
    PROGRAM_TYPE_STRUCT_OPS,
    BpfError,
    BpfMap,
    all_maps,
    maps_of_program,
)

BUILD_SECTION = ".rodata.mltcp"
FLOWS = "mltcp_flows"
FORMER_PINS = BPFFS / "mltcp"

_STATE_IN_USE = 1  # BPF_STRUCT_OPS_STATE_INUSE
_LONGEST_NAME = 15
_OPERATIONS_AT = 64  # in the value; before them are the number of users and the state
_FORMER_MAPS = ("mltcp_jobs", "mltcp_counts", "mltcp_flows", "mltcp_records")


@dataclass(frozen=True)
class KernelControl:
    """A control of this project in the kernel.

    Attributes:
        name: of the control.
        map_id: of its struct_ops map.
        registered: whether new sockets can choose it; otherwise only those keep it that have it.
        users: the sockets that have it, in all network namespaces (and namespaces that have it as their default).
        build: of its object; empty if it was built before there were any.
        maps: the ids of the maps that its programs hold, by name.
    """

    name: str
    map_id: int
    registered: bool
    users: int
    build: str
    maps: Mapping[str, int]


@dataclass(frozen=True)
class StructOpsState:
    """What the kernel says of a struct_ops map: whether it is registered, and how many use it beside that."""

    registered: bool
    users: int

    @classmethod
    def of(cls, control: BpfMap) -> StructOpsState:
        """Of an open struct_ops map."""
        value = control.lookup(bytes(4)) or bytes(8)
        registered = int.from_bytes(value[4:8], "little") == _STATE_IN_USE
        return cls(registered, max(int.from_bytes(value[:4], "little") - registered, 0))


def kernel_controls(names: Collection[str]) -> list[KernelControl]:
    """The controls of this project with one of these names that are registered or have users, by their ids.

    Raises:
        NotAvailableError: this process may not see the maps of the kernel.
    """
    if _held.controls is not None:
        return [each for each in _held.now() if each.name in names]
    shortened = {name[:_LONGEST_NAME]: name for name in names}
    found = []
    try:
        for candidate in all_maps():
            if candidate.type == MAP_TYPE_STRUCT_OPS and candidate.name in shortened:
                control = _control(shortened[candidate.name], candidate)
                if control is not None and (control.registered or control.users):
                    found.append(control)
    except BpfError as error:
        if error.errno != errno.EPERM:
            raise
        raise NotAvailableError(
            "finding the controls in the kernel needs CAP_SYS_ADMIN: run it as root"
        ) from None
    return found


def foreign_id(name: str) -> int | None:
    """The id of a struct_ops map of this name, whoever made it; None for a kernel module's control."""
    if _held.controls is not None:
        return None
    ids = (
        each.id
        for each in all_maps()
        if each.type == MAP_TYPE_STRUCT_OPS and each.name == name[:_LONGEST_NAME]
    )
    return next(ids, None)


def _control(name: str, candidate: BpfMap) -> KernelControl | None:
    maps: dict[str, int] = {}
    stamp = ""
    for program in _programs(name, candidate.lookup(bytes(4)) or b""):
        for number in maps_of_program(program, PROGRAM_TYPE_STRUCT_OPS):
            if number in maps.values():
                continue
            with suppress(BpfError), BpfMap.by_id(number) as used:
                maps[used.name] = number
                if used.name == BUILD_SECTION:
                    stamp = build.build_in(used.lookup(bytes(4)) or b"")
    if not stamp and FLOWS not in maps and candidate.id != _formerly_pinned(name):
        return None
    state = StructOpsState.of(candidate)
    return KernelControl(name, candidate.id, state.registered, state.users, stamp, maps)


def _programs(name: str, value: bytes) -> Iterable[int]:
    """The ids in the places of functions; the rest of the value is 0, but for the name."""
    named = value.find(name.encode(), _OPERATIONS_AT)
    for at in range(_OPERATIONS_AT, len(value) - 7, 8):
        number = int.from_bytes(value[at : at + 8], "little")
        if 0 < number < 1 << 32 and not named - 7 <= at < named + 16:
            yield number


def open_map(number: int) -> BpfMap:
    """The map with this id. Raises BpfError with ENOENT if it is gone."""
    held = _held.maps.get(number)
    return BpfMap.by_id(number) if held is None else held.duplicate()


def unregister(map_id: int) -> None:
    """Take a control from the kernel's list. Its sockets keep it until they close: the kernel holds it for them."""
    try:
        with open_map(map_id) as control:
            control.delete(bytes(4))
    except BpfError as error:
        if error.errno != errno.ENOENT:  # another process was faster
            raise


class _Held:
    """The controls of a process that may not look for them any more, and their open maps by id."""

    def __init__(self) -> None:
        self.controls: list[KernelControl] | None = None
        self.maps: dict[int, BpfMap] = {}

    def now(self) -> Iterator[KernelControl]:
        for control in self.controls or ():
            state = StructOpsState.of(self.maps[control.map_id])
            if state.registered or state.users:
                yield replace(control, registered=state.registered, users=state.users)


_held = _Held()


def hold(names: Collection[str]) -> None:
    """Keep the controls of these names open: this process is about to give up CAP_SYS_ADMIN, which finding them takes.

    From then on this process sees no control that is loaded later.
    """
    controls = kernel_controls(names)
    numbers = {number for control in controls for number in (control.map_id, *control.maps.values())}
    _held.maps = {number: BpfMap.by_id(number) for number in numbers}
    _held.controls = controls


def holds() -> bool:
    """Whether this process has called :func:`hold`."""
    return _held.controls is not None


def release() -> None:
    """End :func:`hold`; nothing is unloaded."""
    for held in _held.maps.values():
        held.close()
    _held.maps, _held.controls = {}, None


def _formerly_pinned(name: str) -> int | None:
    """The id of the control that a version before builds has pinned under this name, if root has."""
    try:
        if all(_is_roots(each) for each in (FORMER_PINS, FORMER_PINS / "controls")):
            with BpfMap.pinned(FORMER_PINS / "controls" / name) as control:
                return control.id
    except (OSError, BpfError):
        pass
    return None


def remove_former_pins(directory: Path = FORMER_PINS) -> None:
    """Remove what versions before builds had pinned, once none of their controls has users.

    A directory that is not root's alone is left as it is: nothing depends on it.
    """
    try:
        if not all(_is_roots(each) for each in (directory, directory / "controls")):
            return
        pins = list((directory / "controls").iterdir())
        for pin in pins:
            with BpfMap.pinned(pin) as control:
                state = StructOpsState.of(control)
                if state.registered or state.users:
                    return
        for pin in [*pins, *(directory / name for name in _FORMER_MAPS)]:
            pin.unlink(missing_ok=True)
        (directory / "controls").rmdir()
        directory.rmdir()
    except (OSError, BpfError):
        return  # no pins, or pins that cannot be removed: they take memory only


def _is_roots(directory: Path) -> bool:
    status = directory.lstat()
    return (
        directory.is_dir()
        and not directory.is_symlink()
        and status.st_uid == 0
        and not status.st_mode & 0o022
    )
