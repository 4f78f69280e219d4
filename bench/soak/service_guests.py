"""Guests of the placement service: submit jobs, change their minds, or send calls that are none."""

from __future__ import annotations

import random
import socket
import sys
import time
from contextlib import suppress

from bench.soak.guest_task import GuestTask
from bench.soak.records import ACKNOWLEDGED, Records, read_records
from mltcp.core.errors import MltcpError
from placement.client.client import Client, RefusedError
from placement.service.protocol import placement_pb2 as pb

_TIMEOUT_S = 20.0
_LONGEST_JOB_S = 8.0
_METHODS = ("Submit", "Status", "Release", "Explain", "RegisterServers", "ChangeServers", "Attach", "NoSuch")


def submitter(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Submits jobs, some of which fail; submits some of them again, which must change nothing."""
    with Client(task.service, timeout_s=_TIMEOUT_S) as client:
        for number in range(draw.randint(1, 3)):
            job = _job(f"j{task.seed}-{number}", task, draw)
            client.submit(job)
            records.acknowledged(job.id)
            if draw.random() < 0.3:
                client.submit(job)
            if draw.random() < 0.3:
                client.explain(job.id)


def fickle(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Releases, requeues and asks about jobs of others, whatever their state."""
    known = list(read_records(task.directory, ACKNOWLEDGED))[-20:]
    with Client(task.service, timeout_s=_TIMEOUT_S) as client:
        for job_id in draw.sample(known, min(3, len(known))):
            with suppress(MltcpError):
                draw.choice((client.release, client.requeue, client.explain, client.job))(job_id)


def operator(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Takes a server out of use, and puts it back soon."""
    with Client(task.service, timeout_s=_TIMEOUT_S) as client:
        server = draw.choice(client.status(unended=True).servers).server.name
        try:
            client.change_servers([server], draw.choice((pb.DRAINING, pb.UNHEALTHY)), "soak")
            time.sleep(draw.uniform(0, 2))
        finally:
            client.change_servers([server], pb.IN_USE)


def malformed(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Calls that are no calls, or that the service must refuse."""
    for _ in range(draw.randint(1, 10)):
        draw.choice((_raw_bytes, _random_calls, _impossible_jobs))(task, draw, records)


def flood(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Asks for the status as fast as it is answered."""
    deadline_s = time.monotonic() + draw.uniform(0.5, 3)
    with Client(task.service, timeout_s=_TIMEOUT_S) as client:
        while time.monotonic() < deadline_s:
            client.status()


def _raw_bytes(task: GuestTask, draw: random.Random, records: Records) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if draw.random() < 0.5 else b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(task.service.removeprefix("unix:"))
        connection.send(preface + draw.randbytes(draw.choice((0, 10, 1000))))
        time.sleep(draw.uniform(0, 1))


def _random_calls(task: GuestTask, draw: random.Random, records: Records) -> None:
    import grpc

    with grpc.insecure_channel(task.service) as channel:
        method = f"/mltcp.placement.v1.Placement/{draw.choice(_METHODS)}"
        call = channel.unary_unary(method, bytes, bytes)
        with suppress(grpc.RpcError):
            call(draw.randbytes(draw.randint(0, 300)), timeout=5)


def _impossible_jobs(task: GuestTask, draw: random.Random, records: Records) -> None:
    wrong = draw.choice(
        (
            pb.Job(id="", gpus=1, iterations=1),
            pb.Job(id="x\n", gpus=1, iterations=1),
            pb.Job(id="wrong", gpus=-1, iterations=1),
            pb.Job(id="wrong", gpus=1, iterations=-1),
            pb.Job(id="wrong", gpus=1, iterations=1, policy="none such"),
            pb.Job(id="wrong", gpus=1, iterations=1, priority=float("nan")),
        )
    )
    with Client(task.service, timeout_s=_TIMEOUT_S) as client:
        try:
            client.submit(wrong)
        except RefusedError:
            return
    records.breach(f"the service has accepted {str(wrong)[:200]!r}")


def _job(job_id: str, task: GuestTask, draw: random.Random) -> pb.Job:
    text = draw.choice(("", "pa$$word", "${local_rank}", "a\nb", "\x1b[31m"))
    seconds, fails = draw.uniform(0, _LONGEST_JOB_S), draw.random() < 0.1
    command = [sys.executable, "-m", "bench.soak.rank", str(task.directory / "locks"), str(task.directory)]
    return pb.Job(
        id=job_id,
        gpus=draw.choice((1, 1, 2, 2, 4)),
        iterations=1,
        command=[
            *(*command, f"{seconds:.2f}", str(int(fails)), f"--text={text}", f"--hex={text.encode().hex()}"),
            *draw.choice(((), (), ("--prints",), ("--leaves-child",))),
        ],
    )
