"""The process that receives the descriptors of one user: ``python -m mltcp.daemon.descriptors.worker SOCKET MAP``.

To look at a descriptor, and to close it, may block: a socket with SO_LINGER and unsent data for as long as its owner
has set, a file of a file system that does not answer for ever, and then the process cannot even be killed. So the
daemon itself never receives one. It hands the connection on which a packet with descriptors waits to this process,
which blocks for this user alone.

The process says when it has started. Messages are JSON objects, one a packet; answers have the number of their task
before it. ``{"task": N, "do": "look"}`` comes with the connection, and is answered by what its descriptors are;
``{"task": N, "do": "set", "settings": [...]}`` by what could not be set, once all are closed;
``{"do": "keep"}`` comes with a connection on which packets may wait, which is kept until the next message, such as
``{"do": "close"}``. These two have no answer.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.daemon.client.protocol import MOST_DESCRIPTORS
from mltcp.daemon.descriptors.connection import found_flow, set_up
from mltcp.daemon.jobs.flows import FlowSettings, RefusedFlow
from mltcp.ebpf.libbpf import BpfMap

MOST_BYTES = 1 << 17
"""The longest message between the daemon and this process."""

STARTED = b"started"
"""The first message to the daemon."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)


class Worker:
    """Carries out the tasks that come over a socket.

    Args:
        daemon: the socket.
        tags: the map of sockets' jobs of the loaded controls, if there are any.
    """

    def __init__(self, daemon: socket.socket, tags: BpfMap | None) -> None:
        self._daemon = daemon
        self._tags = tags
        self._held: dict[int, list[int]] = {}
        self._kept: list[int] = []

    def run(self) -> None:
        """Work until the daemon is gone."""
        self._daemon.sendall(STARTED)
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._daemon, MOST_BYTES, 1)
            if not packet:
                return
            message = json.loads(packet)
            self._close_kept()
            if message["do"] == "look":
                self._look(message["task"], descriptors[0])
            elif message["do"] == "set":
                self._set(message["task"], [FlowSettings(**each) for each in message["settings"]])
            elif message["do"] == "keep":
                self._kept += descriptors

    def _close_kept(self) -> None:
        kept, self._kept = self._kept, []
        _close_all(kept)

    def _look(self, task: int, connection: int) -> None:
        with socket.socket(fileno=connection) as peer:
            descriptors, truncated = _received(peer)
        self._held[task] = descriptors
        found, refused = [], []
        for position, descriptor in enumerate(descriptors):
            try:
                found.append(asdict(found_flow(descriptor, position, self._tags)))
            except (UsageError, OSError) as error:
                refused.append(asdict(RefusedFlow(position, str(error))))
        self._answer(task, found=found, refused=refused, truncated=truncated)

    def _set(self, task: int, wanted: Sequence[FlowSettings]) -> None:
        descriptors = self._held.pop(task, [])
        refused = []
        for each in wanted:
            try:
                set_up(descriptors[each.position], each, self._tags)
            except (UsageError, OSError) as error:
                refused.append(asdict(RefusedFlow(each.position, str(error))))
        # Before the answer, after which the peer may rely on holding the only copies.
        _close_all(descriptors)
        self._answer(task, refused=refused)

    def _answer(self, task: int, **fields: Any) -> None:
        self._daemon.sendall(b"%d %s" % (task, json.dumps(fields).encode()))


def _close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors of others: whatever a file says at its close, Linux has closed it."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _received(peer: socket.socket) -> tuple[list[int], bool]:
    """The descriptors of the packet that waits on a connection, and whether there are more.

    The daemon has read its text.
    """
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    try:
        _, ancillary, received, _ = peer.recvmsg(1, _ANCILLARY_BYTES, flags)
    except OSError:
        return [], False
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found), bool(received & socket.MSG_CTRUNC)


def main() -> None:
    """Work for the daemon at the socket, and on the map (-1: none), that the arguments name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which the daemon gets too
    number, map_number = (int(each) for each in sys.argv[1:3])
    with (
        socket.socket(fileno=number) as daemon,
        suppress(BrokenPipeError, ConnectionResetError),
    ):  # it has ended
        Worker(daemon, None if map_number < 0 else BpfMap(map_number)).run()


if __name__ == "__main__":
    main()
