"""Finds what a kernel lacks for an eBPF object: functions, structures, and members of these."""

from __future__ import annotations

from pathlib import Path

from mltcp.ebpf.kernel_types import RUNNING, KernelTypes

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
