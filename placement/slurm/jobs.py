"""Reads Slurm's jobs: ``squeue``, ``scontrol show job``, and ``sacct`` for those that slurmctld has forgotten.

Their oldest documented formats are read, which all versions print; ``--json`` differs from version to version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mltcp.core.errors import NotAvailableError
from placement.slurm.commands import SlurmError, SlurmUnreachableError, slurm

PLACE_ME = "mltcp"
"""The AdminComment by which job_submit.lua marks jobs that are to be placed."""

HELD = frozenset({"JobHeldAdmin", "JobHeldUser"})
"""Slurm's reasons of jobs that wait to be released."""

ENDED = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
        *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"),
    }
)
"""The states of a job that is over; in all others it has processes, or may have some later."""

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
"""The states of a job that has no processes yet."""

_FIELD = re.compile(r"(?:^|\s)([A-Za-z:]+)=(\S*)")
_TRES_GPUS = re.compile(r"gres[:/]gpu(?::[A-Za-z][^:=,]*)?(?:[:=](\d+))?(?:,|$)")
_INDICES = re.compile(r"Nodes=(\S+).*?GRES=\S*?gpu\S*?\(IDX:([^)]*)\)")


@dataclass(frozen=True)
class SlurmJob:
    """A job as ``squeue`` lists it; of a heterogeneous job its leader, whose id is that of the whole.

    Attributes:
        id: Slurm's number.
        state: such as PENDING, RUNNING, COMPLETED.
        reason: why it waits or has failed, such as Resources, Priority, NonZeroExitCode; "None" for none.
        name, comment: as submitted.
    """

    id: int
    state: str
    reason: str
    name: str
    comment: str

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ENDED


@dataclass(frozen=True)
class SlurmEnd:
    """How a job has ended.

    Attributes:
        state: one of `ENDED`.
        status: the exit status of its batch script.
        signal: what killed the script; 0: nothing did.
        reason: Slurm's reason, such as NonZeroExitCode; may be empty.
        cause: who cancelled it, as sacct says it ("by 1000"); may be empty.
    """

    state: str
    status: int
    signal: int
    reason: str = ""
    cause: str = ""


@dataclass(frozen=True)
class HeldSlurmJob:
    """A job that job_submit.lua has held to be placed.

    Attributes:
        number: Slurm's.
        owner: the account of its user.
        nodes: the smallest number of nodes that it asks for.
        gpus_per_node: as asked for; 0: not by node.
        gpus: the total that it asks for.
    """

    number: int
    owner: str
    nodes: int
    gpus_per_node: int
    gpus: int


def jobs_of_user(user: str | None) -> tuple[SlurmJob, ...]:
    """The jobs of a user, or of all, that slurmctld knows: those not over, and those that ended a short time ago.

    Raises:
        SlurmError: squeue fails.
    """
    whose = [f"--user={user}"] if user is not None else []
    return jobs_in(slurm(["squeue", "--noheader", "--states=all", *whose, "--format=%i|%T|%r|%j|%k"]))


def jobs_in(report: str) -> tuple[SlurmJob, ...]:
    """The jobs in such an output of squeue; components of heterogeneous jobs other than the first are left out."""
    found = []
    for line in report.splitlines():
        fields = line.strip().split("|", 4)
        number = fields[0].removesuffix("+0")
        if len(fields) == 5 and number.isdecimal():
            found.append(SlurmJob(int(number), *fields[1:]))
    return tuple(found)


def held_job(number: int) -> HeldSlurmJob | None:
    """A held job as its user asked for it; None: nobody marked it to be placed, or it wants no GPUs.

    Raises:
        SlurmError: scontrol fails, or there is no such job.
    """
    return held_job_in(_shown(number))


def held_job_in(report: str) -> HeldSlurmJob | None:
    """The job in the first line of ``scontrol --oneliner show job``; see :func:`held_job`."""
    fields = _fields(report)
    if fields.get("AdminComment") != PLACE_ME:
        return None
    nodes = _number(fields.get("NumNodes", "1").partition("-")[0]) or 1
    per_node, in_all = _gpus(fields.get("TresPerNode", "")), _gpus(fields.get("TresPerJob", ""))
    gpus = (
        nodes * per_node
        or in_all
        or _gpus(fields.get("TresPerTask", "")) * _number(fields.get("NumTasks", "1"))
    )
    owner = fields.get("UserId", "").partition("(")[0]
    return HeldSlurmJob(int(fields["JobId"]), owner, nodes, per_node, gpus) if gpus else None


def _gpus(tres: str) -> int:
    """The number of GPUs in ``gres:gpu:4``, ``gres:gpu:a100:4``, ``gres/gpu:4`` or ``gres/gpu=4``."""
    found = _TRES_GPUS.search(tres)
    return 0 if found is None else int(found[1] or 1)


def end_of(job: int, name: str) -> SlurmEnd | None:
    """How a job has ended; None: it has not, or nothing is known of it any more, or its number is another job's.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    try:
        found = end_in(_shown(job), name)
    except SlurmUnreachableError:
        raise
    except SlurmError:
        found = None
    return found or _accounted_end(job, name)


def end_in(report: str, name: str) -> SlurmEnd | None:
    """How a job of that name has ended, in the first line of ``scontrol --oneliner show job``; see :func:`end_of`."""
    fields = _fields(report)
    if fields.get("JobName") != name or fields.get("JobState") not in ENDED:
        return None
    status, _, signal = fields.get("ExitCode", "0:0").partition(":")
    return SlurmEnd(fields.get("JobState", ""), _number(status), _number(signal), fields.get("Reason", ""))


def _accounted_end(job: int, name: str) -> SlurmEnd | None:
    options = (
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--jobs={job}",
        "--format=State,ExitCode,JobName",
    )
    try:
        return accounted_end_in(slurm(["sacct", *options]), name)
    except (SlurmError, NotAvailableError):
        return None  # accounting may be switched off


def accounted_end_in(report: str, name: str) -> SlurmEnd | None:
    """How a job of that name has ended, in the first line of sacct; see :func:`end_of`."""
    state, code, named = (report.partition("\n")[0] + "||").split("|", 2)
    word, _, cause = state.partition(" ")
    if named.rstrip("|") != name or word not in ENDED:
        return None
    status, _, signal = code.partition(":")
    return SlurmEnd(word, _number(status), _number(signal), cause=cause)


def has_been_requeued(job: int) -> bool:
    """Whether Slurm has put a job back into its queue after a start, be it one that failed.

    Raises:
        SlurmError: scontrol fails.
    """
    return _number(_fields(_shown(job)).get("Restarts", "0")) > 0


def gpu_indices(job: int) -> str:
    """The GPUs that Slurm gave a job, such as ``n1: 0-1, n3: 2``; empty: none, or it does not say.

    Raises:
        SlurmError: scontrol fails.
    """
    report = slurm(["scontrol", "--details", "show", "job", str(job)])
    return ", ".join(f"{nodes}: {indices}" for nodes, indices in _INDICES.findall(report))


def _shown(job: int) -> str:
    return slurm(["scontrol", "--oneliner", "show", "job", str(job)])


def _fields(shown: str) -> dict[str, str]:
    """The fields of the first job that `_shown` returned."""
    return dict(_FIELD.findall(shown.partition("\n")[0]))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
