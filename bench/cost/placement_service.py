"""The load that a placement service carries: submissions, placements, and kills.

Each figure is of a service in a process of its own: durable submissions at a given rate, the time of a placement on a
large cluster, and what is left of acknowledged submissions after SIGKILL at any moment.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from bench.cost.benchmark import Row
from bench.lab.programs import ServiceProcess
from mltcp.core.errors import MltcpError, UsageError
from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc

_GPUS = 8
_SERVERS_A_RACK = 20
_NIC_BPS = 50 * 10**9
_JOB_BPS = 20 * 10**9
_POLICIES = "lwf-1,first-fit,list-scheduling,random,lwf-1+cassini"
_CLIENT_TIMEOUT_S = 60
_WORKERS = 16


@dataclass(frozen=True)
class Submissions:
    """The outcome of a load of submissions."""

    offered: float
    a_second: float
    seconds: float
    median_ms: float
    p99_ms: float
    refused: int


@dataclass(frozen=True)
class Placements:
    """The times of placements: seen from the client, and of the decision alone."""

    policy: str
    servers: int
    placed: int
    median_ms: float
    p99_ms: float
    decision_p99_ms: float


@dataclass(frozen=True)
class Kills:
    """The outcome of kills under load: jobs acknowledged, lost, present twice, and present."""

    kills: int
    acknowledged: int
    lost: int
    twice: int
    present: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--rate", type=float, default=1000, metavar="N", help="submissions per second (default 1000)")
    add("--seconds", type=float, default=10, metavar="S", help="of submissions; 0: none (default 10)")
    add("--servers", type=int, default=1000, metavar="N", help="of the cluster (default 1000)")
    add("--placements", type=int, default=500, metavar="N", help="under each policy; 0: none (default 500)")
    add("--policies", default=_POLICIES, metavar="NAMES", help=f"of the placements (default {_POLICIES})")
    add("--kills", type=int, default=50, metavar="N", help="SIGKILLs under load; 0: none (default 50)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure submissions, placements under each policy, and kills."""
    if options.rate <= 0 or options.servers < 1:
        raise UsageError(
            "cost placement-service: expected --rate > 0 and --servers >= 1, "
            f"got {options.rate:g} and {options.servers}"
        )
    if options.seconds:
        with _service(options.servers) as (process, _):
            found = asyncio.run(submissions(process.address, options.rate, options.seconds))
        yield {"case": "submissions", **asdict(found)}
    for policy in options.policies.split(",") if options.placements else []:
        with _service(options.servers) as (_, client):
            placed = placements(client, policy, options.servers, options.placements)
        yield {"case": "placements", **asdict(placed)}
    if options.kills:
        with tempfile.TemporaryDirectory() as directory:
            yield {"case": "SIGKILL under load", **asdict(kills(Path(directory), options.kills))}


@contextmanager
def _service(servers: int) -> Iterator[tuple[ServiceProcess, Client]]:
    with (
        tempfile.TemporaryDirectory() as directory,
        ServiceProcess(directory) as process,
        Client(process.address, timeout_s=_CLIENT_TIMEOUT_S) as client,
    ):
        register(client, servers)
        yield process, client


def register(client: Client, servers: int, gpus: int = _GPUS) -> None:
    """Register servers in racks under one core switch, over-subscribed 2:1."""
    listed = [
        pb.Server(name=f"s{each}", gpus=gpus, nic_bps=_NIC_BPS, switch=f"rack{each // _SERVERS_A_RACK}")
        for each in range(servers)
    ]
    client.register_servers(listed)
    racks = sorted({each.switch for each in listed})
    capacity_bps = _SERVERS_A_RACK * _NIC_BPS // 2
    client.register_links([pb.Link(switch=each, above="core", capacity_bps=capacity_bps) for each in racks])


async def submissions(address: str, a_second: float, seconds: float) -> Submissions:
    """Submit jobs at a fixed rate, whether or not the service keeps up.

    The measured rate is that of the acknowledgements, and a latency counts from when the submission was due.
    """
    draw = random.Random(0)
    requests = [pb.SubmitRequest(job=_job(f"0-{each}", draw)) for each in range(round(a_second * seconds))]
    times_s: list[float] = []
    refused = 0
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.PlacementStub(channel)

        async def submit(request: pb.SubmitRequest, due_s: float) -> None:
            nonlocal refused
            try:
                await stub.Submit(request, timeout=_CLIENT_TIMEOUT_S)
                times_s.append(time.perf_counter() - due_s)
            except grpc.RpcError:
                refused += 1

        began_s = time.perf_counter()
        tasks = []
        for number, request in enumerate(requests):
            due_s = began_s + number / a_second
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            elif number % 16 == 0:
                await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(submit(request, due_s)))
        await asyncio.gather(*tasks)
        elapsed_s = time.perf_counter() - began_s
    if not times_s:
        raise MltcpError("the service has refused every submission")
    return Submissions(
        offered=a_second,
        a_second=len(times_s) / elapsed_s,
        seconds=elapsed_s,
        median_ms=1e3 * _quantile(times_s, 0.5),
        p99_ms=1e3 * _quantile(times_s, 0.99),
        refused=refused,
    )


def placements(client: Client, policy: str, servers: int, number: int) -> Placements:
    """Place jobs one by one until the cluster is full; then release a random job for each that does not fit."""
    draw = random.Random(0)
    times_ms: list[float] = []
    decisions_ms: list[float] = []
    placed: list[str] = []
    for each in range(number):
        name = f"{policy}-0-{each}"
        client.register_job(_job(name, draw))
        while (time_s := _place_s(client, name, policy, retry=bool(placed))) is None:
            client.release(placed.pop(draw.randrange(len(placed))))
        times_ms.append(1e3 * time_s)
        placed.append(name)
        decisions_ms.append(client.explain(name).decision_ns / 1e6)
    for name in placed:
        client.release(name)
    return Placements(
        policy=policy,
        servers=servers,
        placed=len(times_ms),
        median_ms=_quantile(times_ms, 0.5),
        p99_ms=_quantile(times_ms, 0.99),
        decision_p99_ms=_quantile(decisions_ms, 0.99),
    )


def kills(directory: Path, number: int) -> Kills:
    """Kill a service under load repeatedly, and compare its jobs with the acknowledged submissions.

    Raises:
        MltcpError: a slot was given to two jobs.
    """
    draw = random.Random(0)
    acknowledged: dict[str, pb.Job] = {}
    with ServiceProcess(directory) as process:
        with Client(process.address) as client:
            register(client, 40)
        for each in range(number):
            asyncio.run(_submit_until_killed(process, draw.uniform(0.02, 0.4), each, acknowledged))
            process.kill()
            process.start()
        with Client(process.address, timeout_s=_CLIENT_TIMEOUT_S) as client:
            found = [status.job for status in client.status(cluster=False).jobs]
            slots = [
                (place.server, slot)
                for status in client.status(unended=True, cluster=False).jobs
                for place in status.places
                for slot in place.slots
            ]
    if len(slots) != len(set(slots)):
        raise MltcpError("the service has given a slot to two jobs")
    present = {each.id: each for each in found}
    lost = sum(present.get(name) != known for name, known in acknowledged.items())
    return Kills(number, len(acknowledged), lost, len(found) - len(present), len(found))


def _job(job_id: str, draw: random.Random) -> pb.Job:
    """A random job with a compute phase and a communication phase."""
    iteration_ns = draw.choice((100, 120, 150, 200)) * 10**6
    compute_ns = round(iteration_ns * (1 - draw.choice((0.3, 0.5, 0.7))))
    return pb.Job(
        id=job_id,
        gpus=draw.choice((1, 2, 4, 8, 12, 16)),
        iterations=draw.randrange(1000, 100_000),
        profile=pb.Profile(
            phases=[
                pb.Phase(duration_ns=compute_ns),
                pb.Phase(duration_ns=iteration_ns - compute_ns, bandwidth_bps=_JOB_BPS),
            ]
        ),
    )


def _place_s(client: Client, name: str, policy: str, retry: bool) -> float | None:
    """The time to place a job; None if it does not fit and ``retry`` allows that."""
    began_s = time.perf_counter()
    try:
        client.place(name, policy)
    except MltcpError as error:
        if getattr(error, "code", "") != "RESOURCE_EXHAUSTED" or not retry:
            raise
        return None
    return time.perf_counter() - began_s


async def _submit_until_killed(
    process: ServiceProcess, after_s: float, seed: int, acknowledged: dict[str, pb.Job]
) -> None:
    """Submit as fast as the service answers until it is killed, and add what it acknowledged to ``acknowledged``."""
    draw = random.Random(seed)
    async with grpc.aio.insecure_channel(process.address) as channel:
        stub = pb_grpc.PlacementStub(channel)

        async def submit(worker: int) -> None:
            for number in itertools.count():
                request = pb.SubmitRequest(job=_job(f"{seed}-{worker}-{number}", draw))
                await stub.Submit(request)
                acknowledged[request.job.id] = request.job

        tasks = [asyncio.ensure_future(submit(each)) for each in range(_WORKERS)]
        await asyncio.sleep(after_s)
        process.process.kill()
        for task in tasks:
            with suppress(grpc.RpcError):
                await task


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]
