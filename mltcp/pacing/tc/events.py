"""Changes of traffic control by other programs, as the kernel tells them: rtnetlink(7), group RTMGRP_TC.

An event carries the port of the netlink socket that asked for the change. Changes from the ports of our own sockets are
ours. The lower bits of a port are by convention the number of its process, which tells mostly who the others are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError
from mltcp.pacing import netlink

_GROUP_TC = 0x8
_SO_ATTACH_FILTER = 26
_RECEIVE_BUFFER_BYTES = 4 << 20
_TC = struct.Struct("=BxxxiIII")
_PORT = struct.Struct("=I")
_PORT_AT = 12
_INSTRUCTION = struct.Struct("=HBBI")
_MOST_LEFT_OUT = 2000
"""A program of classic BPF has at most 4096 instructions."""

_KINDS = {36: "qdisc", 37: "qdisc", 40: "class", 41: "class", 44: "filter", 45: "filter"}
_REMOVALS = frozenset({37, 41, 45})


@dataclass(frozen=True)
class TcEvent:
    """A qdisc, class or filter that another program has added, changed or removed.

    Attributes:
        index: of the interface.
        kind: ``qdisc``, ``class`` or ``filter``.
        removed: whether it is gone.
        handle, parent: of it.
        process: the number of the process, if it keeps to the convention.
    """

    index: int
    kind: str
    removed: bool
    handle: int
    parent: int
    process: int

    @property
    def by(self) -> str:
        """Who did it, as far as that can still be found out; one of our own number is in another PID namespace."""
        if self.process == os.getpid():
            return "another program"
        try:
            name = Path(f"/proc/{self.process}/comm").read_text().strip()
        except OSError:
            return "another program"
        return f"{name} (process {self.process})"


class TcEvents:
    """The changes of traffic control in this network namespace that this process has not made; one reader a process."""

    def __init__(self) -> None:
        self._socket = netlink.route_socket(_GROUP_TC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._left_out: frozenset[int] = frozenset()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def read(self) -> list[TcEvent] | None:
        """Those since the last call; None if there were more than the kernel keeps.

        Raises:
            MltcpError: the kernel refuses to tell.
        """
        found: list[TcEvent] = []
        complete = True
        closed = netlink.closed_ports()
        self._leave_out(netlink.open_ports())
        while True:
            try:
                buffer = self._socket.recv(netlink.MOST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                netlink.forget_closed(closed)
                return found if complete else None
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise MltcpError(f"changes of traffic control: {error.strerror}") from None
                complete = False
                continue
            found += _events_in(buffer)

    def _leave_out(self, ports: frozenset[int]) -> None:
        """Have the kernel drop what comes from these ports: a control loop changes rates hundreds of times a second."""
        if ports == self._left_out:
            return
        self._left_out = ports
        program = [_INSTRUCTION.pack(0x20, 0, 0, _PORT_AT)]  # A = the port
        for port in sorted(ports)[:_MOST_LEFT_OUT]:
            program.append(_INSTRUCTION.pack(0x15, 0, 1, _as_loaded(port)))  # if A != port, skip the next
            program.append(_INSTRUCTION.pack(0x06, 0, 0, 0))  # return 0: drop
        program.append(_INSTRUCTION.pack(0x06, 0, 0, 0xFFFFFFFF))  # return all of it
        code = ctypes.create_string_buffer(b"".join(program))
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code))
        )


def _as_loaded(value: int) -> int:
    """A number of this machine as classic BPF loads it, in network order."""
    return int.from_bytes(value.to_bytes(4, sys.byteorder), "big")


def _events_in(buffer: bytes) -> Iterator[TcEvent]:
    for kind, _, start, end in netlink.messages(buffer):
        if kind not in _KINDS or end - start < _TC.size:
            continue
        _, index, handle, parent, _ = _TC.unpack_from(buffer, start)
        (port,) = _PORT.unpack_from(buffer, start - netlink.HEADER.size + _PORT_AT)
        if netlink.is_own(port):
            continue
        process = port & netlink.PROCESS_BITS
        yield TcEvent(index, _KINDS[kind], kind in _REMOVALS, handle, parent, process)
