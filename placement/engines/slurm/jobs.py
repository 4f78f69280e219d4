"""Reads Slurm's jobs: ``squeue``, and ``sacct`` for those that slurmctld has forgotten.

Names, comments and paths are texts of users: they are compared, shown, and never read as anything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mltcp.core.errors import NotAvailableError
from placement.engines.slurm.commands import (
    Rows,
    SlurmError,
    SlurmUnreachableError,
    plain_value,
    slurm,
    squeue_rows,
)
from placement.engines.slurm.topology_files import expand

PLACE_ME = "mltcp"
"""The AdminComment by which job_submit.lua marks jobs that are to be placed; users cannot write it."""

PLACED = "mltcp:placed"
"""That of a job which has been released on the nodes that were chosen."""

AWAITED = "mltcp:waits"
"""The beginning of that of a job whose dependency Slurm is to watch; when it may begin apart from that follows."""

LEFT = "mltcp: left to Slurm"
"""The beginning of that of a job that cannot be placed; why follows."""

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

_LISTED = (
    *("JobID", "HetJobOffset", "ArrayTaskID", "State", "UserID", "Reason", "SubmitTime", "exit_code"),
    *("RestartCnt", "admin_comment", "Name", "Comment"),
)
_ASKED_FOR = (
    *("JobID", "UserID", "UserName", "Reason", "SubmitTime", "EligibleTime", "admin_comment", "NumNodes"),
    *("MaxNodes", "NumTasks", "tres-per-node", "tres-per-job", "tres-per-task", "tres-per-socket", "Sockets"),
    *("Partition", "Dependency", "ReqNodes", "Feature", "Reservation", "ArrayTaskID", "HetJobOffset"),
)
_EXCLUDED = ("%A", "%x")
_FORGOTTEN = "invalid job id"
_GPUS = re.compile(r" Nodes=(\S+) .*?GRES=\S*?gpu\S*?\(IDX:([0-9,-]+)\)")
_AFTER_GPUS = "\n   MinCPUsNode="


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
class SlurmJob:
    """A job as ``squeue`` lists it; of a heterogeneous job its leader, whose id is that of the whole.

    Attributes:
        id: Slurm's number.
        state: such as PENDING, RUNNING, COMPLETED.
        uid: the account whose job it is.
        reason: why it waits or has failed, such as Resources, Priority, NonZeroExitCode; "None" for none.
        name, comment: as its user wrote them last.
        submitted: when, as Slurm prints it; that of a job that was requeued is when that happened.
        status, signal: of its batch script, once it has ended.
        restarts: how often Slurm has put it back into its queue after a start, be it one that failed.
        mark: its AdminComment, which users cannot write.
    """

    id: int
    state: str
    uid: int
    reason: str = "None"
    name: str = ""
    comment: str = ""
    submitted: str = ""
    status: int = 0
    signal: int = 0
    restarts: int = 0
    mark: str = ""

    @property
    def to_be_placed(self) -> bool:
        """Whether job_submit.lua has marked it, and it has not been placed since."""
        return self.mark == PLACE_ME

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ENDED

    @property
    def held(self) -> bool:
        """Whether it waits to be released."""
        return self.state == "PENDING" and self.reason in HELD

    @property
    def end(self) -> SlurmEnd | None:
        """How it has ended; None: it has not."""
        return SlurmEnd(self.state, self.status, self.signal, self.reason) if self.over else None


@dataclass(frozen=True)
class SlurmQueue:
    """The jobs by number that squeue lists, and how many of its records could not be read."""

    jobs: Mapping[int, SlurmJob]
    unreadable: int = 0


@dataclass(frozen=True)
class HeldSlurmJob:
    """What a job that is held to be placed asks for, as far as it decides where Slurm would let it run.

    Texts are as Slurm prints them, and empty where it says that there is nothing.

    Attributes:
        number: Slurm's.
        uid, owner: the account of its user, by number and name.
        reason: why it waits.
        submitted, begins: when it was submitted, and the first moment it may run.
        to_be_placed: whether job_submit.lua has marked it.
        nodes, nodes_most: the smallest and the largest number of nodes; 0 for the largest: there is none.
        tasks: the number of tasks.
        per_node, per_job, per_task, per_socket: resources such as ``gres:gpu:a100:2,gres:shard:4``.
        sockets: of each node, such as ``2``; ``*`` for any.
        partitions: names, with commas.
        dependency: of other jobs that must end, start or fail first.
        required, excluded: lists of nodes, such as ``n[1-2,7]``.
        features: the constraint.
        reservation: its name.
        array: indices of tasks; empty: it is no array.
        component: the number of a heterogeneous job's component; empty: it is no such job.
    """

    number: int
    uid: int
    owner: str
    reason: str
    submitted: str
    begins: str
    to_be_placed: bool
    nodes: int
    nodes_most: int
    tasks: int
    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    sockets: str = ""
    partitions: str = ""
    dependency: str = ""
    required: str = ""
    excluded: str = ""
    features: str = ""
    reservation: str = ""
    array: str = ""
    component: str = ""


def jobs_of_user(uid: int | None) -> SlurmQueue:
    """The jobs of an account, or of all, that slurmctld knows: those not over, and those that ended a short time ago.

    Components of heterogeneous jobs other than the first, and arrays, are left out.

    Raises:
        SlurmError: squeue fails.
    """
    return queue_in(squeue_rows(_LISTED, *([f"--user={uid}"] if uid is not None else [])))


def job_numbered(number: int) -> SlurmJob | None:
    """The job of that number, whoever's it is; None: slurmctld says that it knows none.

    Raises:
        SlurmError: squeue fails or says nothing, so that nothing is known.
    """
    try:
        rows = squeue_rows(_LISTED, f"--jobs={number}")
        if not rows.read:
            slurm(["scontrol", "show", "job", str(number)])
            raise SlurmError(f"squeue: expected job {number}, which scontrol shows, got none")
    except SlurmUnreachableError:
        raise
    except SlurmError as error:
        if _FORGOTTEN in str(error).lower():
            return None
        raise
    found = queue_in(rows)
    if number not in found.jobs and found.unreadable:
        raise SlurmError(f"squeue: expected one job {number}, got {found.unreadable} that cannot be read")
    return found.jobs.get(number)


def queue_in(rows: Rows) -> SlurmQueue:
    """The jobs in an answer of squeue. Two of one number are two that cannot be read."""
    found, unreadable = [], rows.unreadable
    for row in rows.read:
        offset, task = plain_value(row[1]), plain_value(row[2])
        if task or offset not in ("", "0"):
            continue
        try:
            found.append(_listed(row))
        except ValueError:
            unreadable += 1
    times = Counter(each.id for each in found)
    once = {each.id: each for each in found if times[each.id] == 1}
    return SlurmQueue(once, unreadable + len(found) - len(once))


def _listed(row: tuple[str, ...]) -> SlurmJob:
    number, _, _, state, uid, reason, submitted, code, restarts, mark, name, comment = row
    status, signal = _exit(code.strip())
    return SlurmJob(
        int(number),
        state.strip(),
        int(uid),
        reason.strip(),
        name,
        comment,
        submitted.strip(),
        status,
        signal,
        int(restarts),
        plain_value(mark),
    )


def _exit(code: str) -> tuple[int, int]:
    """Status and signal in ``3:0``, or in a status of wait(2), which squeue of some versions prints."""
    status, colon, signal = code.partition(":")
    return (int(status), int(signal)) if colon else (int(code) >> 8 & 255, int(code) & 127)


def held_jobs(numbers: Iterable[int]) -> dict[int, HeldSlurmJob]:
    """Held jobs as their users ask for them now; those are missing that ended meanwhile or cannot be read.

    Raises:
        SlurmError: squeue fails.
    """
    wanted = f"--jobs={','.join(map(str, numbers))}"
    try:
        asked, excluded = squeue_rows(_ASKED_FOR, wanted), squeue_rows(_EXCLUDED, wanted)
    except SlurmUnreachableError:
        raise
    except SlurmError as error:
        if _FORGOTTEN in str(error).lower():
            return {}
        raise
    return held_in(asked, excluded)


def held_in(asked: Rows, excluded: Rows) -> dict[int, HeldSlurmJob]:
    """The held jobs in two answers of squeue, the second one with the nodes that they exclude."""
    without = {number.strip(): plain_value(hosts) for number, hosts in excluded.read}
    found = {}
    for row in asked.read:
        try:
            job = _held(row, without)
        except (ValueError, KeyError):
            continue
        found[job.number] = job
    return found


def _held(row: tuple[str, ...], without: Mapping[str, str]) -> HeldSlurmJob:
    fields = dict(zip(_ASKED_FOR, map(plain_value, row), strict=True))
    fewest, _, most = fields["NumNodes"].partition("-")
    return HeldSlurmJob(
        number=int(fields["JobID"]),
        uid=int(fields["UserID"]),
        owner=fields["UserName"],
        reason=fields["Reason"],
        submitted=fields["SubmitTime"],
        begins=fields["EligibleTime"],
        to_be_placed=fields["admin_comment"] == PLACE_ME,
        nodes=int(fewest or 1),
        nodes_most=int(fields["MaxNodes"] or most or 0),
        tasks=int(fields["NumTasks"] or 1),
        per_node=fields["tres-per-node"],
        per_job=fields["tres-per-job"],
        per_task=fields["tres-per-task"],
        per_socket=fields["tres-per-socket"],
        sockets=fields["Sockets"],
        partitions=fields["Partition"],
        dependency=fields["Dependency"],
        required=fields["ReqNodes"],
        excluded=without[fields["JobID"]],
        features=fields["Feature"],
        reservation=fields["Reservation"],
        array=fields["ArrayTaskID"],
        component=fields["HetJobOffset"],
    )


def accounted_end(number: int, uid: int, name: str | None, submitted: str) -> SlurmEnd | None:
    """How a job has ended, by accounting; None: it has not, or accounting knows none of that number that is this one.

    Args:
        number: Slurm's number of the job, which may be another one's meanwhile.
        uid: its account.
        name: the name that it was submitted with; None: any.
        submitted: when; the job is that one also under another name, if the moment is the same.
    """
    options = (
        *("--allocations", "--noheader", "--parsable2", f"--jobs={number}"),
        "--format=State,ExitCode,UID,Submit,JobName",
    )
    try:
        return accounted_end_in(slurm(["sacct", *options]), uid, name, submitted)
    except (SlurmError, NotAvailableError):
        return None  # accounting may be switched off


def accounted_end_in(report: str, uid: int, name: str | None, submitted: str) -> SlurmEnd | None:
    """How the job has ended that the first record of sacct is about; see :func:`accounted_end`.

    All before the name, which is a text of the user and comes last, is Slurm's; what has no such fields is a site's.
    """
    records = (line.split("|", 4) for line in report.split("\n"))
    first = next((each for each in records if len(each) == 5 and each[2].isdecimal()), None)
    if first is None:
        return None
    state, code, whose, when, named = first
    is_this = name is None or named == name or (submitted != "" and when == submitted)
    word, _, cause = state.partition(" ")
    if whose != str(uid) or not is_this or word not in ENDED:
        return None
    status, _, signal = code.partition(":")
    return SlurmEnd(word, _number(status), _number(signal), cause=cause)


def gpu_indices(job: SlurmJob, hosts: Collection[str]) -> str:
    """The GPUs that Slurm gave a job on these hosts, such as ``n1: 0-1, n3: 2``; empty: none, or it does not say.

    Raises:
        SlurmError: scontrol fails.
    """
    return indices_in(slurm(["scontrol", "--details", "show", "job", str(job.id)]), job.name, hosts)


def indices_in(report: str, name: str, hosts: Collection[str]) -> str:
    """The GPUs in ``scontrol --details show job`` of a job of that name; see :func:`gpu_indices`.

    Texts of users are the name, before the GPUs, and what comes behind them.
    """
    found = []
    is_several = " HetJobId=" in report.partition(" JobName=")[0]
    for component, part in enumerate(report.split("\n\nJobId=") if is_several else [report]):
        named = f" JobName={name}{f'+{component}' if component else ''}\n"
        shown = part.partition(named)[2].partition(_AFTER_GPUS)[0]
        found += [
            (nodes, indices) for nodes, indices in _GPUS.findall(shown) if set(expand(nodes)) <= set(hosts)
        ]
    return ", ".join(f"{nodes}: {indices}" for nodes, indices in found)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
