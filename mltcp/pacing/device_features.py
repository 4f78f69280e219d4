"""The names, features and speed of a network device, by rtnetlink(7) and the ioctls of ethtool(8).

Both ask about this network namespace, while /sys shows that of whoever has mounted it. Source:
include/uapi/linux/if_link.h, ethtool.h.
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from mltcp.core.errors import UsageError
from mltcp.pacing import netlink

UNKNOWN_LINE_RATE_BPS = 100_000_000_000
"""The rate of an interface that does not report one. If it is too high, marks correct it; if too low, nothing would."""

_log = logging.getLogger("mltcp.daemon")


class LineRate:
    """The line rate of an interface of this network namespace.

    Args:
        interface: its name.
        given_bps: the rate; None: as the interface reports it.
    """

    def __init__(self, interface: str, given_bps: int | None) -> None:
        self._interface, self._given_bps = interface, given_bps
        self._last_bps: int | None = None

    @property
    def bps(self) -> int:
        """The rate at the last `refresh`; before one, the present rate."""
        # Not read each time: it takes long with some network cards, and is needed for every job in every interval.
        return self._last_bps or self._rate_of(self._reported())

    def refresh(self) -> bool:
        """Read it again, such as after a link was negotiated anew; whether it is another one."""
        reported = self._reported()
        before, self._last_bps = self._last_bps, self._rate_of(reported)
        if self._last_bps != before and not self._given_bps and reported.doubt:
            _log.warning(
                "%s: a line rate of %.0f Mbit/s is assumed, because %s: name the right one by pacing.line_rate",
                self._interface,
                self._last_bps / 1e6,
                reported.doubt,
            )
        return self._last_bps != before

    def _reported(self) -> LinkSpeed:
        return LinkSpeed(None, "") if self._given_bps else link_speed(self._interface)

    def _rate_of(self, reported: LinkSpeed) -> int:
        return self._given_bps or reported.bps or self._last_bps or UNKNOWN_LINE_RATE_BPS


# -- features -----------------------------------------------------------------------------------


_GET_LINK, _IFINFO = 18, struct.Struct("=BxHiII")
_LOWER, _LOWER_NAMESPACE, _OTHER_NAME = 5, 37, 53
_LONGEST_NAME = 127
_U32 = struct.Struct("=I")

_GET_SETTINGS, _SETTINGS_BYTES, _SPEED_AT, _SPEED_HIGH_AT = 0x1, 44, 12, 28
_GET_DRIVER, _DRIVER_BYTES = 0x3, 196
_UNKNOWN_SPEEDS = (0, 0xFFFF, 0xFFFFFFFF)

_NOT_PHYSICAL = frozenset(
    {"tun", "veth", "virtio_net", "vmxnet3", "hv_netvsc", "vif", "dummy", "ifb", "netkit"}
)
"""Drivers whose speed is a constant, or what somebody has set."""

_LAYERED = frozenset({"macvlan", "ipvlan", "macsec", "802.1Q VLAN Support"})
"""Drivers that report the speed of the device below."""

_SIOCETHTOOL = 0x8946
_GET_STRINGS, _GET_SET_INFO, _GET_FEATURES = 0x1B, 0x37, 0x3A
_SET_OF_FEATURES = 4
_STRING_BYTES = 32
_WORDS = 4  # of a block of 32 features: available, requested, active, never changed

TC_OFFLOAD = "hw-tc-offload"


def kernel_name(interface: str) -> str | None:
    """The kernel's name of an interface that has this name or alternative name; None if there is none.

    Raises:
        MltcpError: the kernel cannot be asked.
    """
    try:
        return socket.if_indextoname(socket.if_nametoindex(interface))
    except ValueError:
        return None  # it has a null character
    except OSError:
        pass  # if_nametoindex(3) takes no name of more than 15 characters
    name = os.fsencode(interface)
    found = _link(0, netlink.attribute(_OTHER_NAME, name + b"\0")) if len(name) <= _LONGEST_NAME else None
    try:
        return None if found is None else socket.if_indextoname(_IFINFO.unpack_from(found)[2])
    except OSError:
        return None


def kernel_names(interfaces: Sequence[str]) -> tuple[str, ...]:
    """The kernel's names of interfaces; one that is not there keeps its name.

    Raises:
        UsageError: two names are of the same interface.
    """
    found: dict[str, str] = {}
    for interface in interfaces:
        name = kernel_name(interface) or interface
        if name in found:
            raise UsageError(
                f"interfaces: expected each of the interfaces once, got {found[name]!r} and {interface!r}, "
                f"which are both {name}"
            )
        found[name] = interface
    return tuple(found)


class LinkSpeed(NamedTuple):
    """The speed of a link as its driver reports it; `doubt`: why that is not the rate of a physical link, or empty."""

    bps: int | None
    doubt: str


def link_speed(interface: str) -> LinkSpeed:
    """The speed of an interface of this network namespace, by any of its names."""
    name = kernel_name(interface)
    if name is None:
        return LinkSpeed(None, "there is no such interface")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        driver = _driver(control, name)
        try:
            asked = _U32.pack(_GET_SETTINGS)
            settings = ask_ethtool(control, name, asked, _SETTINGS_BYTES - len(asked))
        except OSError:
            return LinkSpeed(None, f"its driver ({driver}) reports none")
    low, high = (struct.unpack_from("=H", settings, at)[0] for at in (_SPEED_AT, _SPEED_HIGH_AT))
    megabits = high << 16 | low
    if megabits in _UNKNOWN_SPEEDS:
        return LinkSpeed(None, f"its driver ({driver}) reports none")
    doubt = f"its driver ({driver}) has no physical link" if driver in _NOT_PHYSICAL else ""
    return LinkSpeed(megabits * 1_000_000, doubt)


def _driver(control: socket.socket, name: str) -> str:
    """The driver of a device, or of the one below it whose speed it reports."""
    for _ in range(8):
        driver = _driver_of(control, name)
        below = _below(name) if driver in _LAYERED else None
        if below is None:
            return driver
        name = below
    return driver


def _driver_of(control: socket.socket, name: str) -> str:
    try:
        asked = _U32.pack(_GET_DRIVER)
        info = ask_ethtool(control, name, asked, _DRIVER_BYTES - len(asked))
    except OSError:
        return "unknown"
    return info[4:36].split(b"\0")[0].decode(errors="replace") or "unknown"


def _below(name: str) -> str | None:
    """The device below one, if it is in this network namespace."""
    try:
        found = _link(socket.if_nametoindex(name))
        if found is None:
            return None
        attributes = {number: at for number, at, _ in netlink.attributes(found, _IFINFO.size, len(found))}
        if _LOWER not in attributes or _LOWER_NAMESPACE in attributes:
            return None
        return socket.if_indextoname(_U32.unpack_from(found, attributes[_LOWER])[0])
    except OSError:
        return None


def _link(index: int, attributes: bytes = b"") -> bytes | None:
    """The kernel's description of one link; None if there is no such link."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, index, 0, 0) + attributes
    number, found = netlink.ask(_GET_LINK, netlink.ACK, body)
    return found[0] if found and not number else None


def device_features(interface: str) -> dict[str, bool] | None:
    """Whether each feature is switched on, by ethtool's names; None if the device does not tell."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            names = _names(control, interface)
            blocks = (len(names) + 31) // 32
            answer = ask_ethtool(control, interface, struct.pack("=II", _GET_FEATURES, blocks), 16 * blocks)
    except OSError:
        return None
    words = struct.unpack_from(f"={_WORDS * blocks}I", answer, 8)
    active = words[2::_WORDS]
    return {name: bool(active[at // 32] >> at % 32 & 1) for at, name in enumerate(names) if name}


def _names(control: socket.socket, interface: str) -> list[str]:
    asked = struct.pack("=IIQ", _GET_SET_INFO, 0, 1 << _SET_OF_FEATURES)
    (count,) = struct.unpack_from("=I", ask_ethtool(control, interface, asked, 4), 16)
    asked = struct.pack("=III", _GET_STRINGS, _SET_OF_FEATURES, count)
    strings = ask_ethtool(control, interface, asked, _STRING_BYTES * count)[12:]
    return [
        strings[at : at + _STRING_BYTES].split(b"\0")[0].decode()
        for at in range(0, count * _STRING_BYTES, _STRING_BYTES)
    ]


def ask_ethtool(control: socket.socket, interface: str, command: bytes, answer_bytes: int) -> bytes:
    """Ask the driver of an interface by a command of ethtool.

    Args:
        control: any socket of the interface's network namespace.
        interface: its name.
        command: the structure of the command, as far as it is an input.
        answer_bytes: the length of the rest.

    Returns:
        The whole structure.

    Raises:
        OSError: there is no such interface, or its driver does not know the command.
    """
    buffer = array.array("B", command + bytes(answer_bytes))
    address, _ = buffer.buffer_info()
    fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), address))
    return buffer.tobytes()
