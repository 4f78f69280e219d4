"""Guests of the daemon: each uses it for a few seconds, or misuses it."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from contextlib import ExitStack, suppress
from typing import Any

from bench.cost.daemon import connections
from bench.soak.guest_task import GuestTask
from bench.soak.records import Records
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.client.protocol import VERSION

_CHUNK = b"x" * 20_000
_REQUESTS = ("register", "flows", "iteration", "progress", "status", "change", "stop", "subscribe", "?")
_STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**64,
    0.5,
    1e308,
    "",
    "\0",
    "a" * 300,
    "\x1b[31m",
    "../..",
    [],
    {},
    [[]],
)


def trainer(task: GuestTask, draw: random.Random, records: Records) -> None:
    """A well-behaved job: registers, passes connections, sends in iterations, asks, and leaves."""
    with connections(draw.randint(1, 4)) as pairs, Client(task.daemon) as client:
        number = client.register(_registration(draw)).number
        refused = client.add_flows([ours.fileno() for ours, _ in pairs])
        if refused:
            records.breach(f"trainer: a connection was refused: {refused[0].why}")
        for iteration in range(draw.randint(2, 20)):
            began_s = time.monotonic()
            for ours, theirs in pairs:
                ours.sendall(_CHUNK)
                theirs.recv(len(_CHUNK), socket.MSG_WAITALL)
            client.report_iteration(iteration, time.monotonic() - began_s, len(_CHUNK) * len(pairs))
            if draw.random() < 0.2:
                client.change(number, slope=draw.uniform(0, 1.5), intercept=0.25)
            if draw.random() < 0.2:
                client.status()
            time.sleep(draw.uniform(0, 0.1))


def attached(task: GuestTask, draw: random.Random, records: Records) -> None:
    """A job whose connections are found by its cgroup."""
    with Client(task.daemon) as client:
        registration = _registration(draw)
        client.register(Registration(registration.job, registration.instance, attach=True))
        with connections(draw.randint(1, 4)) as pairs:
            for _ in range(draw.randint(2, 20)):
                for ours, theirs in pairs:
                    ours.sendall(_CHUNK)
                    theirs.recv(len(_CHUNK), socket.MSG_WAITALL)
                time.sleep(draw.uniform(0, 0.1))


def silent(task: GuestTask, draw: random.Random, records: Records) -> None:
    """A job that says nothing more, and ends without leaving, its connections still open and with unsent bytes."""
    with ExitStack() as stack:
        pairs = stack.enter_context(connections(draw.randint(1, 8)))
        client = stack.enter_context(Client(task.daemon))
        client.register(_registration(draw))
        client.add_flows([ours.fileno() for ours, _ in pairs])
        for ours, _ in pairs:
            ours.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    ours.send(_CHUNK)
        time.sleep(draw.uniform(0, 3))
        os._exit(0)


def malformed(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Packets that are no requests, or requests with fields of strange values; many replies are left unread."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(2)
        connection.connect(os.fspath(task.daemon))
        for _ in range(draw.randint(1, 200)):
            connection.send(_packet(draw))
            if draw.random() < 0.5:
                connection.recv(65536)


def descriptors(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Passes descriptors that are no TCP connections, or connections whose closing lingers."""
    with ExitStack() as stack, Client(task.daemon) as client:
        client.register(_registration(draw))
        pairs = stack.enter_context(connections(2))
        lingering, _ = pairs[0]
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
        lingering.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                lingering.send(_CHUNK)
        reading, writing = os.pipe()
        odd = [reading, writing, os.eventfd(0), os.open("/dev/null", os.O_RDONLY), client.fileno()]
        unix = socket.socketpair()
        odd += [each.fileno() for each in unix]
        for _ in range(draw.randint(1, 20)):
            passed = [*draw.choices(odd, k=draw.randint(0, 8)), lingering.fileno()]
            client.add_flows(passed)
        os._exit(0)


def hoarder(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Connects as often as it is let, says nothing, and holds on."""
    with ExitStack() as stack:
        with suppress(MltcpError, OSError):
            for _ in range(draw.randint(10, 400)):
                stack.enter_context(Client(task.daemon))
        time.sleep(draw.uniform(0.5, 4))


def flood(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Asks for the status as fast as it is answered, on several connections at once, or without reading at all."""
    deadline_s = time.monotonic() + draw.uniform(0.5, 3)
    request = json.dumps({"version": VERSION, "request": "status"}).encode()
    reads = draw.random() < 0.7
    with ExitStack() as stack:
        opened = []
        for _ in range(draw.randint(1, 30)):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.connect(os.fspath(task.daemon))
            connection.setblocking(False)
            opened.append(connection)
        while time.monotonic() < deadline_s:
            for connection in opened:
                with suppress(BlockingIOError):
                    connection.send(request)
                with suppress(BlockingIOError):
                    while reads and connection.recv(65536):
                        pass
            time.sleep(0.001)


def intruder(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Tries to change and to end jobs of other users."""
    with Client(task.daemon) as client:
        own = client.register(_registration(draw)).number
        others = {job.number for job in client.status().jobs if not job.detail} - {own}
        for number in others or {own + 1}:
            for attempt in (lambda: client.change(number, slope=0.0), lambda: client.stop(number)):  # noqa: B023
                try:
                    attempt()
                except MltcpError:
                    continue
                if task.uid and number in others:
                    records.breach(f"user {task.uid} has changed job {number} of another user")


def _registration(draw: random.Random) -> Registration:
    return Registration(
        draw.choice(("bert", "vgg", "resnet", f"job-{draw.randrange(50)}")),
        str(draw.randrange(5)),
        total_bytes=draw.choice((0, 10**6)),
        gap_s=draw.choice((0.0, 0.05)),
    )


def _packet(draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return draw.randbytes(draw.choice((1, 10, 1000, 60000)))
    fields = (
        "number",
        "job",
        "instance",
        "slope",
        "intercept",
        "function",
        "control",
        "attach",
        "rank",
        "id",
    )
    document = {name: draw.choice(_STRANGE) for name in draw.sample(fields, draw.randint(0, 6))}
    version = VERSION if draw.random() < 0.9 else draw.choice(_STRANGE)
    return json.dumps({"version": version, "request": draw.choice(_REQUESTS), **document}).encode()
