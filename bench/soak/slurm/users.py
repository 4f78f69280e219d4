"""Users of the soak's Slurm, who submit by ``sbatch`` themselves, and bystanders whose jobs nobody may end."""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import suppress

from bench.soak.guest_task import GuestTask
from bench.soak.records import CANCELLED, HELD, SLURM_JOBS, Records
from bench.soak.slurm.hostile_text import hostile_text
from bench.soak.slurm.place import SlurmPlace
from mltcp.core.errors import MltcpError

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
_TIMEOUT_S = 20.0
_LONGEST_JOB_S = 6.0
_LONGEST_BYSTANDER_S = 20.0


def slurm_user(task: GuestTask, draw: random.Random, records: Records) -> None:
    """Submits jobs with hostile text, changes, holds, requeues and cancels them, and tries the same with others'."""
    slurm = _place(task)
    for number in range(draw.randint(1, 3)):
        key = f"u{task.seed}-{number}"
        options = [
            f"--job-name={hostile_text(draw, _seen(slurm)) if draw.random() < 0.7 else 'train.sh'}",
            f"--comment={hostile_text(draw, _seen(slurm))}",
            *draw.choice(_REQUESTS),
        ]
        job = _submit(task, records, key, options, draw.uniform(0, _LONGEST_JOB_S))
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
    slurm = _place(task)
    file = slurm.users / str(task.uid) / key
    arguments = (str(slurm.script), str(slurm.locks), str(file), f"{seconds:.2f}")
    fixed = ("--parsable", "--chdir=/", "--output=/dev/null")
    job = run(slurm, "sbatch", *fixed, *options, *arguments).strip().splitlines()[-1]
    records.note(SLURM_JOBS, [key, task.uid, job, time.time()])
    return job


def _change(slurm: SlurmPlace, draw: random.Random, records: Records, key: str, job: str) -> None:
    def update(number: str) -> None:
        field = draw.choice(("Comment", "JobName"))
        run(slurm, "scontrol", "update", f"JobId={number}", f"{field}={hostile_text(draw, _seen(slurm))}")

    def hold() -> None:
        records.note(HELD, job)
        run(slurm, "scontrol", "hold", job)
        time.sleep(draw.uniform(0, 3))
        run(slurm, "scontrol", "release", job)

    def cancel() -> None:
        records.note(CANCELLED, key)
        run(slurm, "scancel", job)

    def of_others() -> None:
        for line in draw.sample(seen := _seen(slurm), min(3, len(seen))):
            number = line.partition("|")[0]
            if number != job and not _is_own(slurm, number):
                draw.choice((update, lambda each: run(slurm, "scancel", each)))(number)

    def requeue() -> None:
        run(slurm, "scontrol", "requeue", job)

    draw.choice((lambda: update(job), lambda: update(job), hold, requeue, cancel, of_others))()


def _is_own(slurm: SlurmPlace, number: str) -> bool:
    """Whether a job is one of this account, which its other guests want to end."""
    return run(slurm, "squeue", "--noheader", f"--jobs={number}", "--format=%U").strip() == str(os.getuid())


def _seen(slurm: SlurmPlace) -> list[str]:
    """Lines of squeue that look like jobs, also forged ones."""
    with suppress(MltcpError):
        printed = run(slurm, "squeue", "--noheader", "--format=%i|%j|%k")
        return [line for line in printed.splitlines() if line.partition("|")[0].isdecimal()]
    return []


def run(slurm: SlurmPlace, *command: str) -> str:
    """Run one of Slurm's commands; returns its output. Raises MltcpError: it fails."""
    try:
        done = subprocess.run(
            command,
            env=dict(slurm.environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MltcpError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise MltcpError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


def _place(task: GuestTask) -> SlurmPlace:
    assert task.slurm is not None
    return task.slurm
