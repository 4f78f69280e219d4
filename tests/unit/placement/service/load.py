"""Loads a placement service and prints what it bears: python -m tests.unit.placement.service.load [--help].

Three figures, each of a service in a process of its own: durable submissions a second at a given rate, how long a
placement on a large cluster takes, and what is left of acknowledged submissions after SIGKILL at any moment.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

import grpc

from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc

GPUS = 8
SERVERS_A_RACK = 20


class Process:
    """A placement service in a process; a context manager that kills it at the end."""

    def __init__(self, directory, policy="lwf-1", *arguments):
        self.address = f"unix:{directory}/s"
        self.command = [
            *(sys.executable, "-m", "placement.cli", "serve", "--json", "--policy", policy),
            *("--address", self.address, "--state", f"{directory}/state.db", *arguments),
        ]
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the service did not start: status {self.process.wait()}")
        assert json.loads(line)["address"] == self.address

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        self.process.stdout.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def register(client, servers, gpus=GPUS):
    """A cluster of racks under one core, 2:1 over-subscribed."""
    listed = [
        pb.Server(name=f"s{each}", gpus=gpus, nic_bps=50 * 10**9, switch=f"rack{each // SERVERS_A_RACK}")
        for each in range(servers)
    ]
    client.register_servers(listed)
    racks = sorted({each.switch for each in listed})
    capacity = SERVERS_A_RACK * 50 * 10**9 // 2
    client.register_links([pb.Link(switch=each, above="core", capacity_bps=capacity) for each in racks])


def job(job_id, draw):
    """A job such as clusters have them."""
    iteration_ns = draw.choice((100, 120, 150, 200)) * 10**6
    busy = draw.choice((0.3, 0.5, 0.7))
    phases = [
        pb.Phase(duration_ns=round(iteration_ns * (1 - busy))),
        pb.Phase(duration_ns=iteration_ns - round(iteration_ns * (1 - busy)), bandwidth_bps=20 * 10**9),
    ]
    return pb.Job(
        id=job_id,
        gpus=draw.choice((1, 2, 4, 8, 12, 16)),
        iterations=draw.randrange(1000, 100_000),
        profile=pb.Profile(phases=phases),
    )


@dataclass(frozen=True)
class Submissions:
    """What came of a load of submissions."""

    offered: float
    a_second: float
    seconds: float
    median_ms: float
    p99_ms: float
    refused: int


async def submissions(address, a_second, seconds, seed=0):
    """Submit at a rate, whether or not the service keeps up; the rate is that of the acknowledgements."""
    draw = random.Random(seed)
    jobs = [pb.SubmitRequest(job=job(f"{seed}-{each}", draw)) for each in range(round(a_second * seconds))]
    took, refused = [], 0
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.PlacementStub(channel)

        async def submit(request, at):
            nonlocal refused
            try:
                await stub.Submit(request, timeout=60)
                took.append(time.perf_counter() - at)
            except grpc.RpcError:
                refused += 1

        began = time.perf_counter()
        tasks = []
        for number, request in enumerate(jobs):
            due = began + number / a_second
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            elif number % 16 == 0:
                await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(submit(request, due)))
        await asyncio.gather(*tasks)
        lasted = time.perf_counter() - began
    took.sort()
    return Submissions(
        a_second,
        len(took) / lasted,
        lasted,
        1e3 * took[len(took) // 2],
        1e3 * took[len(took) * 99 // 100],
        refused,
    )


@dataclass(frozen=True)
class Placements:
    """How long placements took, seen from the client, and the decision alone."""

    policy: str
    servers: int
    placed: int
    median_ms: float
    p99_ms: float
    decision_p99_ms: float


def placements(client, policy, servers, number, seed=0):
    """Place jobs one by one on a cluster that fills, and empties again by a job for each that no longer fits."""
    draw = random.Random(seed)
    took, decided, placed = [], [], []
    for each in range(number):
        name = f"{policy}-{seed}-{each}"
        client.register_job(job(name, draw))
        while True:
            began = time.perf_counter()
            try:
                client.place(name, policy)
            except Exception as error:
                if getattr(error, "code", "") != "RESOURCE_EXHAUSTED" or not placed:
                    raise
                client.release(placed.pop(draw.randrange(len(placed))))
                continue
            took.append(1e3 * (time.perf_counter() - began))
            break
        placed.append(name)
        decided.append(client.explain(name).decision_ns / 1e6)
    for name in placed:
        client.release(name)
    took.sort()
    decided.sort()
    return Placements(
        policy,
        servers,
        len(took),
        took[len(took) // 2],
        took[len(took) * 99 // 100],
        decided[len(took) * 99 // 100],
    )


@dataclass(frozen=True)
class Kills:
    """What was left after kills under load."""

    kills: int
    acknowledged: int
    lost: int
    twice: int
    present: int


async def _until_killed(process, after_s, seed, acknowledged):
    """Submit as fast as is answered until the service is killed; remember what was acknowledged."""
    draw = random.Random(seed)
    async with grpc.aio.insecure_channel(process.address) as channel:
        stub = pb_grpc.PlacementStub(channel)

        async def submit(worker):
            for number in range(1_000_000):
                request = pb.SubmitRequest(job=job(f"{seed}-{worker}-{number}", draw))
                await stub.Submit(request)
                acknowledged[request.job.id] = request.job

        tasks = [asyncio.ensure_future(submit(each)) for each in range(16)]
        await asyncio.sleep(after_s)
        process.process.send_signal(signal.SIGKILL)
        for task in tasks:
            with suppress(grpc.RpcError):
                await task


def kills(directory, number, seed=0):
    """Kill a service under load, again and again, and compare what is there with what was acknowledged."""
    draw = random.Random(seed)
    acknowledged = {}
    with Process(directory) as process:
        with Client(process.address) as client:
            register(client, 40)
        for each in range(number):
            asyncio.run(_until_killed(process, draw.uniform(0.02, 0.4), seed * 1000 + each, acknowledged))
            process.kill()
            process.start()
        with Client(process.address, timeout_s=60) as client:
            found = [status.job for status in client.status(cluster=False).jobs]
            slots = [
                (place.server, slot)
                for status in client.status(unended=True, cluster=False).jobs
                for place in status.places
                for slot in place.slots
            ]
    assert len(slots) == len(set(slots)), "a slot was given to two jobs"
    present = {each.id: each for each in found}
    lost = sum(present.get(name) != known for name, known in acknowledged.items())
    return Kills(number, len(acknowledged), lost, len(found) - len(present), len(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000, help="submissions a second (default 1000)")
    parser.add_argument("--seconds", type=float, default=10, help="for so long (default 10)")
    parser.add_argument("--servers", type=int, default=1000, help="of the cluster (default 1000)")
    parser.add_argument("--placements", type=int, default=500, help="of each policy (default 500)")
    parser.add_argument("--policies", default="lwf-1,first-fit,list-scheduling,random,lwf-1+cassini")
    parser.add_argument("--kills", type=int, default=50, help="with SIGKILL under load (default 50)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        with Process(directory) as process, Client(process.address, timeout_s=60) as client:
            register(client, options.servers)
            if options.seconds:
                print(asyncio.run(submissions(process.address, options.rate, options.seconds)), flush=True)
    for policy in options.policies.split(",") if options.placements else []:
        with tempfile.TemporaryDirectory() as directory:
            with Process(directory) as process, Client(process.address, timeout_s=60) as client:
                register(client, options.servers)
                print(placements(client, policy, options.servers, options.placements), flush=True)
    if options.kills:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(asdict(kills(directory, options.kills))), flush=True)


if __name__ == "__main__":
    main()
