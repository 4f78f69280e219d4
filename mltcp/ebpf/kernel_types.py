"""The types of a kernel: its functions, and the members of its structures, read from its BTF by libbpf."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

from mltcp.ebpf.libbpf import BpfError, library

RUNNING = Path("/sys/kernel/btf/vmlinux")
"""The types of the kernel that runs."""

_FUNC, _FUNC_PROTO, _STRUCT, _UNION, _DATASEC = 12, 13, 4, 5, 15  # BTF_KIND_*


class _Type(ctypes.Structure):
    """The kernel's ``struct btf_type``; what follows it depends on its kind."""

    _fields_ = (("name", ctypes.c_uint32), ("info", ctypes.c_uint32), ("type", ctypes.c_uint32))

    @property
    def kind(self) -> int:
        return (self.info >> 24) & 0x1F

    @property
    def count(self) -> int:
        return self.info & 0xFFFF


class _Member(ctypes.Structure):
    """``struct btf_member``."""

    _fields_ = (("name", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32))


class _Entry(ctypes.Structure):
    """``struct btf_var_secinfo``: what is in a section."""

    _fields_ = (("type", ctypes.c_uint32), ("offset", ctypes.c_uint32), ("size", ctypes.c_uint32))


_Element = TypeVar("_Element", _Member, _Entry)


class KernelTypes:
    """The types in a file: a kernel's (raw BTF, or an ELF file that has it), or those of an eBPF object.

    Raises:
        BpfError: the file has no BTF.
    """

    def __init__(self, path: Path = RUNNING) -> None:
        self._handle: int | None = library().btf__parse(str(path).encode(), None)
        if not self._handle:
            raise BpfError(f"cannot read the types in {path}", ctypes.get_errno())

    def __enter__(self) -> KernelTypes:
        return self

    def __exit__(self, *_: object) -> None:
        library().btf__free(self._handle)
        self._handle = None

    def parameters(self, function: str) -> int | None:
        """The number of a function's parameters; None if there is no such function."""
        number = library().btf__find_by_name_kind(self._handle, function.encode(), _FUNC)
        return None if number < 0 else self._type(self._type(number).type).count

    def members(self, structure: str) -> frozenset[str] | None:
        """The names of a structure's members, those of anonymous ones inside it included; None if there is none."""
        number = library().btf__find_by_name_kind(self._handle, structure.encode(), _STRUCT)
        return None if number < 0 else frozenset(self._members(number))

    def called(self) -> Iterator[str]:
        """The kernel's functions that an eBPF object calls."""
        number = library().btf__find_by_name_kind(self._handle, b".ksyms", _DATASEC)
        if number < 0:
            return
        for entry in self._following(number, _Entry):
            found = self._type(entry.type)
            if found.kind == _FUNC:
                yield self._name(found.name)

    def _members(self, number: int) -> Iterator[str]:
        for member in self._following(number, _Member):
            name = self._name(member.name)
            if name:
                yield name
            elif self._type(member.type).kind in (_STRUCT, _UNION):
                yield from self._members(member.type)

    def _following(self, number: int, kind: type[_Element]) -> ctypes.Array[_Element]:
        """The elements of a type, which follow it in memory."""
        found = self._type(number)
        return (kind * found.count).from_address(ctypes.addressof(found) + ctypes.sizeof(_Type))

    def _type(self, number: int) -> _Type:
        return _Type.from_address(library().btf__type_by_id(self._handle, number))

    def _name(self, offset: int) -> str:
        return str(library().btf__name_by_offset(self._handle, offset).decode())


@cache
def has_tx_start_hook(kernel: Path = RUNNING) -> bool:
    """Whether congestion controls of a kernel have a function of their own for the end of an idle period (from 7.1 on).

    Raises:
        BpfError: a file without types.
    """
    with KernelTypes(kernel) as types:
        return "cwnd_event_tx_start" in (types.members("tcp_congestion_ops") or ())


# -- what a kernel lacks ------------------------------------------------------------------------


KERNEL_STRUCTURES = (
    "ack_sample",
    "bictcp",
    "inet_connection_sock",
    "inet_sock",
    "minmax",
    "minmax_sample",
    "sock",
    "sock_common",
    "tcp_congestion_ops",
    "tcp_sock",
)
"""The kernel's structures that the objects declare, with the members that they use (``CORE`` in the sources)."""


def missing(compiled: Path, kernel: Path = RUNNING) -> list[str]:
    """List what a kernel lacks for a compiled object; empty if the object fits.

    Raises:
        BpfError: a file without types.
    """
    with KernelTypes(compiled) as wanted, KernelTypes(kernel) as present:
        return [*_missing_functions(wanted, present), *_missing_members(wanted, present)]


def _missing_functions(wanted: KernelTypes, present: KernelTypes) -> list[str]:
    lacking = []
    for name in wanted.called():
        given, takes = wanted.parameters(name), present.parameters(name)
        if takes is None:
            lacking.append(f"no function {name}")
        elif takes != given:
            lacking.append(f"{name} takes {takes} parameters, not {given}")
    return lacking


def _missing_members(wanted: KernelTypes, present: KernelTypes) -> list[str]:
    lacking = []
    for name in KERNEL_STRUCTURES:
        used = wanted.members(name)
        if used is None:
            continue
        found = present.members(name)
        if found is None:
            lacking.append(f"no struct {name}")
        else:
            lacking += [f"no {member} in struct {name}" for member in sorted(used - found)]
    return lacking
