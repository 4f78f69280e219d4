"""The process of one test on the server's side, which inherits the test's connections."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from bench.perf import messages, side
from bench.perf.plan import PerfPlan
from bench.perf.side import registered
from mltcp.core.errors import MltcpError


def main(arguments: Sequence[str]) -> int:
    """Run the test that the server describes; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    given = json.loads(arguments[0])
    plan = PerfPlan.from_document(given["plan"])
    control = socket.socket(fileno=given["control"])
    connections = {
        name: [socket.socket(fileno=each) for each in several] for name, several in given["data"].items()
    }
    for each in [control, *(each for several in connections.values() for each in several)]:
        each.settimeout(None)
    try:
        _serve(plan, control, connections)
    except MltcpError:
        return 1  # the client has gone, and reports the reason
    return 0


def _serve(plan: PerfPlan, control: socket.socket, connections: side.Connections) -> None:
    every = [each for several in connections.values() for each in several]
    with registered(plan.job, plan.control, every) as daemon:
        moving = side.directions(plan, connections, is_client=False)
        finished = threading.Event()
        threading.Thread(target=_end_with_client, args=(control, finished), daemon=True).start()
        messages.send(control, {"ok": True, "start": True, "daemon": daemon})
        for direction in moving:
            direction.start()
        for direction in moving:
            direction.join()
        finished.set()
        for message in side.report_messages([side.report(each) for each in moving]):
            messages.send(control, message)


def _end_with_client(control: socket.socket, finished: threading.Event) -> None:
    """Exit when the control connection ends before the test has finished; the client sends nothing more on it."""
    with suppress(OSError):
        if control.recv(1, socket.MSG_PEEK) != b"":
            return
    if not finished.is_set():
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
