"""Remedies in the words of the distribution of this host: which command installs what it lacks."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Remedies:
    """What brings libbpf, what is needed to compile, and modules that the kernel's own package lacks (empty: none)."""

    libbpf: str
    compiler: str
    modules: str = ""


_DEBIAN = Remedies("apt-get install libbpf1", "apt-get install clang libbpf-dev linux-libc-dev")
_UBUNTU_22 = Remedies("build libbpf 1.0 or newer from its sources, Ubuntu 22.04 has 0.5", _DEBIAN.compiler)
_RHEL = Remedies(
    "dnf install libbpf",
    "dnf install --enablerepo=crb clang libbpf-devel kernel-headers",
    "dnf install kernel-modules-extra",
)
_ANOTHER = Remedies(
    "install libbpf 1.0 or newer", "install clang, and the headers of libbpf and of Linux for user space"
)


def remedies_of(release: dict[str, str]) -> Remedies:
    """The remedies of a distribution.

    Args:
        release: the fields of its ``/etc/os-release``; source: os-release(5). Derived distributions (``ID_LIKE``) have
            the packages of the one that they come from.
    """
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if release.get("UBUNTU_CODENAME", release.get("VERSION_CODENAME")) == "jammy":
        return _UBUNTU_22
    if {"debian", "ubuntu"} & set(names):
        return _DEBIAN
    return _RHEL if {"rhel", "fedora"} & set(names) else _ANOTHER


@cache
def remedies() -> Remedies:
    """Those of this host."""
    try:
        return remedies_of(platform.freedesktop_os_release())
    except OSError:
        return _ANOTHER
