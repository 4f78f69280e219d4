"""The features of a network device, by the ioctls of ethtool(8) (include/uapi/linux/ethtool.h)."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GET_STRINGS, _GET_SET_INFO, _GET_FEATURES = 0x1B, 0x37, 0x3A
_SET_OF_FEATURES = 4
_STRING_BYTES = 32
_WORDS = 4  # of a block of 32 features: available, requested, active, never changed

TC_OFFLOAD = "hw-tc-offload"


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
