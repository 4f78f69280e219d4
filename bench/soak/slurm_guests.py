"""Guests of a soak's Slurm: users of ``sbatch``, bystanders, and users of the service with tokens."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from bench.soak.guest_task import OPERATOR, USERS, GuestTask, SlurmPlace
from bench.soak.records import CANCELLED, HELD, RELEASED, SLURM_JOBS, TOKEN_JOBS, Records
from mltcp.core.errors import MltcpError
from placement.client.client import Client, RefusedError
from placement.service.protocol import placement_pb2 as pb

# -- text that is made to be taken for what Slurm itself prints --------------------------------------------------------

_ODD = (
    "x JobId=abc",
    "x JobId=2 NumNodes=1 Priority=1",
    "x UserId=daemon(1)",
    "x UserId=root(0) JobState=COMPLETED ExitCode=0:0",
    "AdminComment=none Comment=mltcp",
    "x JobState=CANCELLED Reason=None Restarts=7",
    "a|b|c||",
    "%i|%T|%j",
    "${JobId} $$ `id` $(id)",
    'quote " and \' and \\ and {"job_id": 1, "name": "x"}',
    "\x1b[2J\x1b]0;title\x07",
    "my run 3",
    "Übung für Größe",
    "\u202egnp.exe\u2028next",
    "tab\tand\rreturn",
    "-1",
    "None",
    "--help",
    "mltcp:",
    "mltcp.bert",
    "slurm-5",
    "JobId=" + "9" * 4000,
    "9" * 4000,
    "\n\n\n",
)


def hostile_text(draw: random.Random, seen: Sequence[str]) -> str:
    """A text, at times a forged line of squeue about a job of somebody else.

    Args:
        draw: by which it is chosen.
        seen: lines ``NUMBER|NAME|COMMENT`` of squeue, as all users can read them.
    """
    if not seen or draw.random() < 0.5:
        return draw.choice(_ODD)
    number, _, rest = draw.choice(seen).partition("|")
    name, _, comment = rest.partition("|")
    ours = next((line for line in seen if "|mltcp:" in line), f"1|x|{comment}")
    mark = ours.partition("|mltcp:")[2] or "00000000:1"
    state = draw.choice(("RUNNING", "PENDING", "COMPLETED", "CANCELLED"))
    reason = draw.choice(("None", "JobHeldAdmin", "BeginTime"))
    forged = draw.choice(
        (
            f"{number}|{state}|{reason}|{name}|mltcp:{mark}",
            f"{number}|{state}|{reason}|{name}|{comment}",
            f"{number}|{state}|0|{reason}|{name}|mltcp:{mark}",
            f"JobId={number} JobName={name} UserId=root(0) JobState={state} AdminComment=mltcp",
        )
    )
    return draw.choice((f"x\n{forged}", f"x\n{forged}\n", f"mltcp:{mark}", forged))


# -- users of Slurm ----------------------------------------------------------------------------------------------------

SCRIPT = """\
#!/bin/bash
# Arguments: the locks, the file of this job, seconds.
echo "began $(date +%s)" >> "$2"
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
    lock="$1/$SLURMD_NODENAME.$gpu"
    [ -e "$lock" ] || continue
    exec {held}<>"$lock"
    if flock -n "$held"; then
        printf '%s\\n' "$$ $SLURM_JOB_ID $(date +%s)" > "$lock"
    else
        echo "twice $SLURMD_NODENAME.$gpu $(date +%s) $(head -n1 "$lock")" >> "$2"
    fi
done
sleep "$3"
echo "ended $(date +%s)" >> "$2"
"""

_REQUESTS = (
    (),
    ("--gres=gpu:1",),
    ("--gres=gpu:1",),
    ("--gres=gpu:2",),
    ("--gpus=1",),
    ("--gpus=4",),
    ("--ntasks=1", "--gpus-per-task=1"),
    ("--nodes=2", "--gres=gpu:1"),
    ("--gres=gpu:1", "--begin=now+3"),
    ("--gres=gpu:1", "--exclude=n1"),
    ("--gres=gpu:1", "--nodelist=n2"),
)
_COMMAND_TIMEOUT_S = 20.0
_LONGEST_USERS_JOB_S = 6.0
_LONGEST_BYSTANDER_S = 20.0


def slurm_user(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Submits jobs with hostile text, changes, holds, requeues and cancels them, and tries the same with others'."""
    slurm = _slurm_of(task)
    for number in range(draw.randint(1, 3)):
        key = f"u{task.seed}-{number}"
        options = [
            f"--job-name={hostile_text(draw, _seen(slurm)) if draw.random() < 0.7 else 'train.sh'}",
            f"--comment={hostile_text(draw, _seen(slurm))}",
            *draw.choice(_REQUESTS),
        ]
        job = _submit(task, records, key, options, draw.uniform(0, _LONGEST_USERS_JOB_S))
        for _ in range(draw.randint(0, 2)):
            time.sleep(draw.uniform(0.1, 2))
            with suppress(MltcpError):  # the job is over, or Slurm does not answer
                _change(slurm, draw, records, key, job)


def bystander(task: GuestTask, draw: random.Random, records: Records) -> None:
    """A user who has nothing to do with the service: one job, perhaps on a node of his choice, and nothing else."""
    request = draw.choice(((), ("--nodelist=n1", "--gres=gpu:1")))
    options = ["--job-name=thesis", *request]
    _submit(task, records, f"b{task.seed}", options, draw.uniform(2, _LONGEST_BYSTANDER_S))


def _submit(task: GuestTask, records: Records, key: str, options: list[str], seconds: float) -> str:
    slurm = _slurm_of(task)
    file = slurm.users / str(task.uid) / key
    arguments = (str(slurm.script), str(slurm.locks), str(file), f"{seconds:.2f}")
    fixed = ("--parsable", "--chdir=/", "--output=/dev/null")
    job = run_in_slurm(slurm, "sbatch", *fixed, *options, *arguments).strip().splitlines()[-1]
    records.note(SLURM_JOBS, [key, task.uid, job, time.time()])
    return job


def _change(slurm: SlurmPlace, draw: random.Random, records: Records, key: str, job: str) -> None:
    def update(number: str) -> None:
        field = draw.choice(("Comment", "JobName"))
        run_in_slurm(
            slurm, "scontrol", "update", f"JobId={number}", f"{field}={hostile_text(draw, _seen(slurm))}"
        )

    def hold() -> None:
        records.note(HELD, job)
        run_in_slurm(slurm, "scontrol", "hold", job)
        time.sleep(draw.uniform(0, 3))
        run_in_slurm(slurm, "scontrol", "release", job)

    def cancel() -> None:
        records.note(CANCELLED, key)
        run_in_slurm(slurm, "scancel", job)

    def of_others() -> None:
        for line in draw.sample(seen := _seen(slurm), min(3, len(seen))):
            number = line.partition("|")[0]
            if number != job and not _is_own(slurm, number):
                draw.choice((update, lambda each: run_in_slurm(slurm, "scancel", each)))(number)

    def requeue() -> None:
        run_in_slurm(slurm, "scontrol", "requeue", job)

    draw.choice((lambda: update(job), lambda: update(job), hold, requeue, cancel, of_others))()


def _is_own(slurm: SlurmPlace, number: str) -> bool:
    """Whether a job is one of this account, which its other guests want to end."""
    return run_in_slurm(slurm, "squeue", "--noheader", f"--jobs={number}", "--format=%U").strip() == str(
        os.getuid()
    )


def _seen(slurm: SlurmPlace) -> list[str]:
    """Lines of squeue that look like jobs, also forged ones."""
    with suppress(MltcpError):
        printed = run_in_slurm(slurm, "squeue", "--noheader", "--format=%i|%j|%k")
        return [line for line in printed.splitlines() if line.partition("|")[0].isdecimal()]
    return []


def run_in_slurm(slurm: SlurmPlace, *command: str) -> str:
    """Run one of Slurm's commands; returns its output. Raises MltcpError: it fails."""
    try:
        done = subprocess.run(
            command,
            env=dict(slurm.environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MltcpError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise MltcpError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


def _slurm_of(task: GuestTask) -> SlurmPlace:
    assert task.slurm is not None
    return task.slurm


# -- users of the service, with tokens ---------------------------------------------------------------------------------

FAILS = "-fails"
"""The end of the names of jobs that are made to fail."""

_SERVICE_TIMEOUT_S = 20.0
_LONGEST_TOKEN_JOB_S = 6.0
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
    with _service_client(task, draw.choice(USERS)) as client:
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
    with _service_client(task, me) as client:
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
    with _service_client(task, draw.choice(USERS)) as client:
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
    with _service_client(task, OPERATOR) as client:
        server = draw.choice(client.status(unended=True).servers).server.name
        try:
            client.change_servers([server], pb.DRAINING, "soak")
            time.sleep(draw.uniform(0, 2))
        finally:
            client.change_servers([server], pb.IN_USE)


def _job(job_id: str, task: GuestTask, draw: random.Random) -> pb.Job:
    fails, elastic = draw.random() < 0.1, draw.random() < 0.2
    text = draw.choice(_TEXTS)
    command = [
        *(sys.executable, "-m", "bench.soak.rank", str(_slurm_of(task).locks), str(task.directory)),
        *(
            f"{draw.uniform(0, _LONGEST_TOKEN_JOB_S):.2f}",
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


def _service_client(task: GuestTask, name: str) -> Client:
    place = _slurm_of(task)
    return Client(place.service, token=place.tokens[name], timeout_s=_SERVICE_TIMEOUT_S, socket_owner="root")
