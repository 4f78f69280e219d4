"""The receiving end of a job alone: discards what arrives, and answers each flow's share of an iteration by a byte.

``python -m bench.alone.receiver NAMESPACE ADDRESS PORT FLOWS SHARE_BYTES CONTROL PROCESSOR`` writes a line once it
listens, and ends with its connections. An empty NAMESPACE is the caller's.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from bench.workloads.place import RankPlace

_NO_INTERFACE = "none"  # as in sender.py
_BLOCK_BYTES = 1 << 20
RECEIVED = b"r"


def _discard(connection: socket.socket, share: int) -> None:
    buffer = bytearray(_BLOCK_BYTES)
    missing = share
    with connection:
        # MSG_TRUNC discards data in the kernel, without copying them.
        while received := connection.recv_into(buffer, min(_BLOCK_BYTES, missing), socket.MSG_TRUNC):
            missing -= received
            if not missing:
                connection.sendall(RECEIVED)
                missing = share


def main(arguments: list[str]) -> int:
    """Receive; returns the exit status."""
    namespace, address, port, flows, share, control, processor = arguments
    RankPlace(namespace or None, _NO_INTERFACE, address).enter()
    os.sched_setaffinity(0, {int(processor)})
    with socket.create_server((address, int(port)), backlog=int(flows)) as listener:
        # Connections inherit it: who is acknowledged by DCTCP's rule is told of every mark.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        print("listening", flush=True)
        connections = [listener.accept()[0] for _ in range(int(flows))]
    threads = [threading.Thread(target=_discard, args=(each, int(share))) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
