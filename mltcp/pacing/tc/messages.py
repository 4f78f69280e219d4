"""The two tc requests for which pyroute2 is too slow, or which it does not have.

The rate of a class changes many times a second: a change takes pyroute2 0.4 ms, and this module 4 to 6 us. The
classifier of marks is classic BPF, which kernels without eBPF have, too. Sources: include/uapi/linux/pkt_sched.h
and pkt_cls.h; net/sched/sch_htb.c for the attributes that a change may omit.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping

from mltcp.core.errors import MltcpError
from mltcp.pacing import netlink

_RTM_NEWTCLASS, _RTM_NEWTFILTER = 40, 44
_KIND, _OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_BPF_OPS_LEN, _BPF_OPS = 4, 5
_CLASSIFIER = 1
_LINKLAYER_ETHERNET = 1
_ETH_P_ALL = 0x0003

_TC = struct.Struct("=BxxxiIII")
_RATE_SPEC = struct.Struct("=BBHhHI")
_HTB_TAIL = struct.Struct("=IIIII")
_U16, _U64 = struct.Struct("=H"), struct.Struct("=Q")
_BPF_INSTRUCTION = struct.Struct("=HBBI")
_LARGEST_U32 = 0xFFFFFFFF

QUANTUM_BYTES = 60_000
_LONGEST_FRAME_BYTES = 1600
_BURST_S = 0.0005
"""A class may send the bytes of this time at once: longer than timer latency, shorter than a switch's queue."""

_PSCHED_NS = 64
"""The kernel's unit of time for a burst."""


class ClassGoneError(MltcpError):
    """A class or its interface does not exist any more."""


def burst_bytes(rate_bps: float) -> int:
    """The bytes that a class of this rate may send at once."""
    return int(rate_bps / 8 * _BURST_S) + 2 * _LONGEST_FRAME_BYTES


class TcSocket:
    """Sends tc requests in this network namespace.

    Raises:
        MltcpError: (every request) the kernel refuses it; ClassGoneError if the class or interface does not exist.
    """

    def __init__(self) -> None:
        self._socket = netlink.route_socket()
        self._next_number = 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def change_rates(self, index: int, parent: int, rates_bps: Mapping[int, float]) -> None:
        """Change the rates of HTB classes of interface `index` in place; their queues are kept.

        Args:
            index: of the interface.
            parent: the minor number of their parent, each in its own qdisc.
            rates_bps: by handle.
        """
        messages = [
            _class_change(index, handle & 0xFFFF0000 | parent, handle, rate)
            for handle, rate in rates_bps.items()
        ]
        # In batches whose replies fit the receive buffer.
        for at in range(0, len(messages), 64):
            self._request(messages[at : at + 64])

    def add_mark_classifier(self, index: int, parent: int, mark: int, mask: int) -> None:
        """Classify packets whose mark is `mark` under `mask` into the class of `parent` that the other bits name."""
        program = _mark_program(mark, mask, parent)
        options = netlink.attribute(_BPF_OPS_LEN, _U16.pack(len(program))) + netlink.attribute(
            _BPF_OPS, b"".join(program)
        )
        info = 1 << 16 | socket.htons(_ETH_P_ALL)
        # With a handle it replaces what a killed daemon left; without, the kernel would add it beside that.
        body = _TC.pack(socket.AF_UNSPEC, index, _CLASSIFIER, parent, info)
        body += netlink.attribute(_KIND, b"bpf\0") + netlink.attribute(_OPTIONS | netlink.NESTED, options)
        self._request([(_RTM_NEWTFILTER, netlink.CREATE | netlink.REPLACE, body)])

    def _request(self, messages: list[tuple[int, int, bytes]]) -> None:
        """Send requests (kind, flags, body) and take their acknowledgements."""
        first = self._next_number
        self._next_number = (first + len(messages)) & _LARGEST_U32
        numbered = (
            netlink.message(kind, netlink.ACK | flags, body, (first + at) & _LARGEST_U32)
            for at, (kind, flags, body) in enumerate(messages)
        )
        netlink.send(self._socket, b"".join(numbered))
        waiting, worst = set(range(len(messages))), 0
        while waiting:
            buffer = netlink.receive(self._socket)
            for kind, number, start, end in netlink.messages(buffer):
                at = (number - first) & _LARGEST_U32
                # Others are of requests that failed.
                if kind == netlink.ERROR and at in waiting:
                    waiting.discard(at)
                    worst = worst or netlink.error_in(buffer, start, end)
        if worst in (errno.ENOENT, errno.ENODEV, errno.EINVAL):
            raise ClassGoneError(
                f"traffic control: {os.strerror(worst)}: the class or its interface does not exist"
            )
        if worst:
            raise MltcpError(f"traffic control: {os.strerror(worst)}")


def _class_change(index: int, parent: int, handle: int, rate_bps: float) -> tuple[int, int, bytes]:
    rate = max(1, int(rate_bps / 8))
    burst = max(1, int(burst_bytes(rate_bps) / rate * 1e9 / _PSCHED_NS))
    # The kernel computes the rate tables for Ethernet itself; the request needs none.
    spec = _RATE_SPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _LARGEST_U32))
    options = netlink.attribute(_HTB_PARMS, spec + spec + _HTB_TAIL.pack(burst, burst, QUANTUM_BYTES, 0, 0))
    if rate > _LARGEST_U32:
        options += netlink.attribute(_HTB_RATE64, _U64.pack(rate)) + netlink.attribute(
            _HTB_CEIL64, _U64.pack(rate)
        )
    body = _TC.pack(socket.AF_UNSPEC, index, handle, parent, 0)
    body += netlink.attribute(_KIND, b"htb\0") + netlink.attribute(_OPTIONS | netlink.NESTED, options)
    return _RTM_NEWTCLASS, 0, body


def _mark_program(mark: int, mask: int, parent: int) -> list[bytes]:
    """Classic BPF: returns the class of a mark if it is one of ours, else 0, which selects the default class."""
    load_mark = 0xFFFFF000 + 20  # SKF_AD_OFF + SKF_AD_MARK
    return [
        _BPF_INSTRUCTION.pack(0x20, 0, 0, load_mark),  # A = mark
        _BPF_INSTRUCTION.pack(0x07, 0, 0, 0),  # X = A
        _BPF_INSTRUCTION.pack(0x54, 0, 0, mask),  # A &= mask
        _BPF_INSTRUCTION.pack(0x15, 0, 4, mark),  # if A != mark, go to the last
        _BPF_INSTRUCTION.pack(0x87, 0, 0, 0),  # A = X
        _BPF_INSTRUCTION.pack(0x54, 0, 0, ~mask & _LARGEST_U32),  # A &= ~mask
        _BPF_INSTRUCTION.pack(0x44, 0, 0, parent),  # A |= parent
        _BPF_INSTRUCTION.pack(0x16, 0, 0, 0),  # return A
        _BPF_INSTRUCTION.pack(0x06, 0, 0, 0),  # return 0
    ]
