"""The two requests of traffic control that pyroute2 is too slow for, or does not know.

A class is given another rate many times a second: pyroute2 takes 0.4 ms for that, this 4 to 6 us. And the classifier of
marks is classic BPF, which is to be had where eBPF is not. Sources: include/uapi/linux/pkt_sched.h, pkt_cls.h, and
net/sched/sch_htb.c for what a change may leave out.
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
"""A class may send what its rate allows in so long at once: more than a timer is late, less than a switch's queue."""

_PSCHED_NS = 64
"""The kernel counts a burst in this unit of time."""


class ClassGoneError(MltcpError):
    """A class or its interface is not there any more."""


def burst_bytes(rate_bps: float) -> int:
    """How much a class of this rate may send at once."""
    return int(rate_bps / 8 * _BURST_S) + 2 * _LONGEST_FRAME_BYTES


class TcSocket:
    """Sends requests of traffic control in this network namespace.

    Raises:
        MltcpError: (each request) the kernel refuses; ClassGoneError where there is no such class or interface.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def change_rates(self, index: int, parent: int, rates_bps: Mapping[int, float]) -> None:
        """Give HTB classes of interface `index` other rates, in place: what they have queued stays queued."""
        messages = [_class_change(index, parent, handle, rate) for handle, rate in rates_bps.items()]
        # Few enough at once that the replies fit the receive buffer.
        for at in range(0, len(messages), 64):
            self._request(messages[at : at + 64])

    def add_mark_classifier(self, index: int, parent: int, mark: int, mask: int) -> None:
        """Send every packet whose mark is `mark` under `mask` to the class whose handle its whole mark is."""
        program = _mark_program(mark, mask)
        options = netlink.attribute(_BPF_OPS_LEN, _U16.pack(len(program))) + netlink.attribute(
            _BPF_OPS, b"".join(program)
        )
        info = 1 << 16 | socket.htons(_ETH_P_ALL)
        # With a handle, so that a second one is refused: without, the kernel would put it beside the first.
        body = _TC.pack(socket.AF_UNSPEC, index, _CLASSIFIER, parent, info)
        body += netlink.attribute(_KIND, b"bpf\0") + netlink.attribute(_OPTIONS | netlink.NESTED, options)
        self._request(
            [netlink.message(_RTM_NEWTFILTER, netlink.ACK | netlink.CREATE | netlink.EXCLUSIVE, body)]
        )

    def _request(self, messages: list[bytes]) -> None:
        self._socket.send(b"".join(messages))
        waiting, worst = len(messages), 0
        while waiting:
            buffer = self._socket.recv(netlink.MOST_BYTES)
            for kind, _, start, _ in netlink.messages(buffer):
                if kind == netlink.ERROR:
                    waiting -= 1
                    worst = worst or netlink.error_in(buffer, start)
        if worst in (errno.ENOENT, errno.ENODEV, errno.EINVAL):
            raise ClassGoneError(f"traffic control: {os.strerror(worst)}: the class or its interface is gone")
        if worst:
            raise MltcpError(f"traffic control: {os.strerror(worst)}")


def _class_change(index: int, parent: int, handle: int, rate_bps: float) -> bytes:
    rate = max(1, int(rate_bps / 8))
    burst = max(1, int(burst_bytes(rate_bps) / rate * 1e9 / _PSCHED_NS))
    # The kernel makes its own tables of rates for Ethernet: none have to come with the request.
    spec = _RATE_SPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _LARGEST_U32))
    options = netlink.attribute(_HTB_PARMS, spec + spec + _HTB_TAIL.pack(burst, burst, QUANTUM_BYTES, 0, 0))
    if rate > _LARGEST_U32:
        options += netlink.attribute(_HTB_RATE64, _U64.pack(rate)) + netlink.attribute(
            _HTB_CEIL64, _U64.pack(rate)
        )
    body = _TC.pack(socket.AF_UNSPEC, index, handle, parent, 0)
    body += netlink.attribute(_KIND, b"htb\0") + netlink.attribute(_OPTIONS | netlink.NESTED, options)
    return netlink.message(_RTM_NEWTCLASS, netlink.ACK, body)


def _mark_program(mark: int, mask: int) -> list[bytes]:
    """Classic BPF: the mark, if it is one of ours, names the class; 0 leaves the packet to the default class."""
    load_mark = 0xFFFFF000 + 20  # SKF_AD_OFF + SKF_AD_MARK
    return [
        _BPF_INSTRUCTION.pack(0x20, 0, 0, load_mark),  # A = mark
        _BPF_INSTRUCTION.pack(0x07, 0, 0, 0),  # X = A
        _BPF_INSTRUCTION.pack(0x54, 0, 0, mask),  # A &= mask
        _BPF_INSTRUCTION.pack(0x15, 0, 2, mark),  # if A != mark, go to the last
        _BPF_INSTRUCTION.pack(0x87, 0, 0, 0),  # A = X
        _BPF_INSTRUCTION.pack(0x16, 0, 0, 0),  # return A
        _BPF_INSTRUCTION.pack(0x06, 0, 0, 0),  # return 0
    ]
