"""Registers a test's connections as flows of a job at the daemon of this host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, NoDaemonError, Registration


@contextmanager
def registered(job: str, control: str, connections: Sequence[socket.socket]) -> Iterator[str]:
    """Register the connections as the job's during the context; yields the outcome as text, errors included.

    With an empty job name, no daemon is asked.
    """
    if not job:
        yield ""
        return
    try:
        client = Client()
    except NoDaemonError as error:
        yield str(error)
        return
    with client:
        try:
            made = client.register(Registration(job, f"perf-{os.getpid()}", control=control or "default"))
            refused = client.add_flows([each.fileno() for each in connections])
        except MltcpError as error:
            yield str(error)
            return
        if refused:
            yield f"mltcpd does not take {len(refused)} of {len(connections)} flows: {refused[0].why}"
        else:
            by = {"kernel": f"under {made.control}", "tc": "paced", "none": "only watched"}[made.how]
            yield f"job {made.number} of mltcpd, {by}"
