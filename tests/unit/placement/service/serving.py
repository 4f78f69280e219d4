"""A placement service on a thread of the test process, with a real socket and a real database."""

import asyncio
import sqlite3
import threading
from contextlib import contextmanager

from mltcp.core.address import Address
from placement.service.protocol import placement_pb2 as pb
from placement.service.server import ServiceConfiguration, running_service
from tests.eventually import LIMIT_S, eventually

PATIENCE_S = LIMIT_S
_COMPILED_S = 600.0
"""A service is ready once its policy has decided: on a busy machine without a cache that takes minutes."""

GBPS = 10**9


@contextmanager
def serving(directory, *, address=None, **configured):
    """Run a service within the context, and yield its address as text."""
    started, box = threading.Event(), {}

    async def live():
        box["loop"], box["stopped"] = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        parsed = Address.parse(address or f"unix:{directory}/s")
        try:
            async with running_service(
                ServiceConfiguration(parsed, directory / "state.db", **configured), box["stopped"]
            ) as bound:
                box["address"] = str(bound)
                started.set()
                await box["stopped"]
        except Exception as error:
            box["error"] = error
        finally:
            started.set()

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    assert started.wait(_COMPILED_S)
    try:
        if "error" in box:
            raise box["error"]
        yield box["address"]
    finally:
        if "error" not in box:
            box["loop"].call_soon_threadsafe(lambda: box["stopped"].done() or box["stopped"].set_result(None))
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def two_racks(gpus=4):
    """Servers s0 and s1 in rack r0, s2 and s3 in r1; the uplinks are 2:1 over-subscribed."""
    servers = tuple(
        pb.Server(name=f"s{each}", gpus=gpus, nic_bps=10 * GBPS, switch=f"r{each // 2}") for each in range(4)
    )
    links = tuple(pb.Link(switch=f"r{each}", above="core", capacity_bps=10 * GBPS) for each in range(2))
    return {"servers": servers, "links": links}


def profile(*phases):
    """The profile of phases in (milliseconds, Gbit/s)."""
    return pb.Profile(
        phases=[
            pb.Phase(duration_ns=round(ms * 10**6), bandwidth_bps=round(gbps * GBPS)) for ms, gbps in phases
        ]
    )


HALF = profile((50, 0), (50, 10))
"""Sends at the links' capacity for half of the time: two such jobs are compatible at a shift of 50 ms."""


def job(job_id, gpus, iterations=1000, **fields):
    return pb.Job(id=job_id, gpus=gpus, iterations=iterations, **fields)


def placed(client, job_id):
    """Wait until a job is placed."""
    return eventually(lambda: (status := client.job(job_id)).state == pb.PLACED and status)


_TAKEN_BACK = {
    7: "DROP TABLE records;",
    6: "ALTER TABLE jobs DROP COLUMN speed;",
    5: "DROP TABLE identities;",
    4: "DROP TABLE ratios;",
    3: "ALTER TABLE servers DROP COLUMN state; ALTER TABLE servers DROP COLUMN reason;",
    2: "ALTER TABLE jobs DROP COLUMN owner;",
    1: "ALTER TABLE jobs DROP COLUMN done; ALTER TABLE jobs DROP COLUMN restarts;",
}


def as_of_version(path, version):
    """Make a database what it was in an earlier version of its schema."""
    statements = "".join(text for number, text in _TAKEN_BACK.items() if number >= version)
    with sqlite3.connect(path) as database:
        database.executescript(f"{statements} PRAGMA user_version={version};")


def version_of(path):
    """The version of a database's schema."""
    with sqlite3.connect(path) as database:
        return database.execute("PRAGMA user_version").fetchone()[0]
