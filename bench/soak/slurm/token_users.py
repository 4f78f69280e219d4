"""Users with tokens of the service whose engine is Slurm: jobs that run, jobs that must be refused, and very many."""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress

from bench.soak.guest_task import GuestTask
from bench.soak.records import RELEASED, TOKEN_JOBS, Records
from bench.soak.slurm.place import OPERATOR, USERS, SlurmPlace
from mltcp.core.errors import MltcpError
from placement.client.client import Client, RefusedError
from placement.service.protocol import placement_pb2 as pb

FAILS = "-fails"
"""The end of the names of jobs that are made to fail."""

_TIMEOUT_S = 20.0
_LONGEST_JOB_S = 6.0
_LONGEST_WAIT_S = 20.0
_CROWD = 300
_TEXTS = (
    "pa$$word",
    "${local_rank} $local_rank",
    "$HOME `id`",
    "a\nb\tc",
    "\x1b[31m",
    "q\"u'o\\te",
    "",
    "Übung",
)
_ENDED = (pb.ENDED, pb.FAILED)


def token_user(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Submits a job or two, at times again or releases it, and waits a little for their end."""
    with _client(task, draw.choice(USERS)) as client:
        for number in range(draw.randint(1, 2)):
            job = _job(f"t{task.seed}-{number}", task, draw)
            client.submit(job)
            records.note(TOKEN_JOBS, job.id)
            if draw.random() < 0.3:
                client.submit(job)
            if draw.random() < 0.15:
                time.sleep(draw.uniform(0, 3))
                records.note(RELEASED, job.id)
                client.release(job.id)
        deadline_s = time.monotonic() + _LONGEST_WAIT_S
        while client.job(job.id).state not in _ENDED and time.monotonic() < deadline_s:
            time.sleep(0.5)


def hostile_token_user(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Asks for what must be refused: names of Slurm's jobs, endless text, control characters, jobs of others."""
    me, number = draw.choice(USERS), draw.randint(1, 50)
    wrong = (
        pb.Job(id=f"slurm-{number}", gpus=1, iterations=1, command=["true"]),
        pb.Job(id=f"slurm-{number:04}", gpus=1, iterations=1, command=["true"]),
        pb.Job(id="x\n1|RUNNING|None|x|mltcp:00000000:1", gpus=1, iterations=1, command=["true"]),
        pb.Job(id="\x1b[31m", gpus=1, iterations=1, command=["true"]),
        pb.Job(id=f"h{task.seed}", gpus=1, iterations=1, command=["echo", "x" * 2_000_000]),
        pb.Job(id=f"h{task.seed}", gpus=1, iterations=1, command=["true"], held=str(number)),
        pb.Job(id=f"h{task.seed}", gpus=1, iterations=1, command=["a\0b"]),
    )
    with _client(task, me) as client:
        for job in draw.sample(wrong, 3):
            for call in (client.submit, client.register_job):
                try:
                    call(job)
                except RefusedError:
                    continue
                except MltcpError as error:
                    if "larger than max" in str(error):
                        continue
                    raise
                records.breach(f"the service has let a user with a token register {str(job)[:100]!r}")
        others = [job for job in client.status(unended=True, cluster=False).jobs if job.owner != me]
        for status in draw.sample(others, min(3, len(others))):
            try:
                draw.choice((client.release, client.requeue))(status.id)
            except RefusedError:
                continue
            records.breach(f"user {me} has ended job {status.id} of {status.owner or 'nobody'}")


def crowd(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Registers very many jobs, asks about some, and releases them again."""
    with _client(task, draw.choice(USERS)) as client:
        names = [f"c{task.seed}-{number}" for number in range(_CROWD)]
        made = []
        with suppress(RefusedError):  # a limit of jobs
            for name in names:
                client.register_job(pb.Job(id=name, gpus=1, iterations=1, command=["echo", "x" * 1000]))
                made.append(name)
        for name in made:
            client.release(name)


def slurm_operator(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Takes a node out of use at the service, and puts it back soon."""
    with _client(task, OPERATOR) as client:
        server = draw.choice(client.status().servers).server.name
        try:
            client.change_servers([server], pb.DRAINING, "soak")
            time.sleep(draw.uniform(0, 2))
        finally:
            client.change_servers([server], pb.IN_USE)


def _job(job_id: str, task: GuestTask, draw: random.Random) -> pb.Job:
    fails, elastic = draw.random() < 0.1, draw.random() < 0.2
    text = draw.choice(_TEXTS)
    command = [
        *(sys.executable, "-m", "bench.soak.rank", str(_place(task).locks), str(task.directory)),
        *(
            f"{draw.uniform(0, _LONGEST_JOB_S):.2f}",
            str(int(fails)),
            f"--text={text}",
            f"--hex={text.encode().hex()}",
        ),
        *(["--agent"] if elastic else []),
        *draw.choice(([], [], ["--prints"], ["--leaves-child"], ["--padding", "x" * 60_000])),
    ]
    return pb.Job(
        id=f"{job_id}{FAILS if fails else ''}",
        gpus=draw.choice((1, 1, 2, 3, 4)),
        iterations=1,
        elastic=elastic,
        command=command,
    )


def _client(task: GuestTask, name: str) -> Client:
    place = _place(task)
    return Client(place.service, token=place.tokens[name], timeout_s=_TIMEOUT_S, socket_owner="root")


def _place(task: GuestTask) -> SlurmPlace:
    assert task.slurm is not None
    return task.slurm
