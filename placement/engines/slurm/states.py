"""Slurm's states of jobs and nodes as events of the engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mltcp.core.one_line import one_line
from placement.engines.engine import EngineEvent, HostBack, HostOut, JobFailed, JobFinished, JobStopped
from placement.engines.node_process import exit_text
from placement.engines.slurm.jobs import SlurmEnd, SlurmJob
from placement.engines.slurm.nodes import SlurmNode
from placement.engines.slurm.records import FAILURE, ended_status, ended_well
from placement.engines.slurm.submission import LOG, STOPPED, STOPPED_BADLY

_LOST = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not start",
    "PREEMPTED": "it was preempted",
    "REVOKED": "it was revoked by another cluster",
}
_FAILED = {
    "TIMEOUT": "it reached its time limit",
    "DEADLINE": "it reached its deadline in Slurm",
    "OUT_OF_MEMORY": "it ran out of memory",
}
_OUT = {
    **dict.fromkeys(("DRAIN", "DRAINED", "DRAINING", "DRNG"), "drained"),
    **dict.fromkeys(("DOWN", "ERROR", "FAIL", "FAILING", "FAILG", "FUTURE", "DYNAMIC_FUTURE"), "down"),
    **dict.fromkeys(("INVAL", "INVALID_REG"), "registered with less than slurm.conf has"),
    **dict.fromkeys(("REBOOT_ISSUED", "REBOOTING"), "rebooting"),
    **dict.fromkeys(("POWER_DOWN", "POWERING_DOWN"), "powering down"),
    "BLOCKED": "blocked by a job that has its switch alone",
    "EXTERNAL": "external",
}
"""Slurm's states and flags of nodes on which it starts no job, each with our word for it; the first one counts.

Slurm starts jobs on nodes that are PLANNED for others, that are POWERED_DOWN (it starts the nodes first), and until a
REBOOT_REQUESTED is issued.
"""

_RESERVED = {
    **dict.fromkeys(("MAINTENANCE", "MAINT"), "in maintenance"),
    **dict.fromkeys(("RESERVED", "RESV"), "reserved"),
}
"""Those on which it starts jobs of a reservation only."""

_MARKS = {"$": "MAINTENANCE", "!": "POWER_DOWN", "%": "POWERING_DOWN", "^": "REBOOT_ISSUED"}
_NO_STATES = re.compile(r"[*~#@-]")
_LAST_BYTES = 4096
_NOISE = re.compile(
    r"^(?:srun|slurmstepd|bash): (?:error: )?(?:Terminating|\*\*\*|Job step aborted|.*: Exited with)"
)


def waiting_text(job: SlurmJob, gpus: str = "") -> str:
    """The state in Slurm of a job that has not ended, such as ``Slurm job 7: pending (Resources)``."""
    text = f"Slurm job {job.id}: {job.state.lower()}"
    if job.reason not in ("", "None"):
        text += f" ({one_line(job.reason)})"
    return f"{text}, GPUs {gpus}" if gpus else text


def event_of_end(job_id: str, slurm_job: int, end: SlurmEnd, directory: Path | None) -> EngineEvent:
    """The event of a Slurm job that has ended; why a rank failed is read in the directory of its logs.

    A user's own job has none, and its exit statuses mean what its user likes.
    """
    where = f"Slurm job {slurm_job}"
    if end.state == "COMPLETED":
        return JobFinished(job_id)
    if directory is not None and end.state == "FAILED" and end.status in (STOPPED, STOPPED_BADLY):
        return JobStopped(job_id, orderly=end.status == STOPPED)
    if end.state == "CANCELLED":
        return JobStopped(job_id, why=f"{where}: cancelled {end.cause}".rstrip())
    if end.state in _LOST:
        return JobFailed(job_id, f"{where}: {_LOST[end.state]}", lost=True, again=True)
    if end.state in _FAILED:
        return JobFailed(job_id, f"{where}: {_FAILED[end.state]}")
    return _failure(job_id, where, end, directory)


def own_end(directory: Path, nodes: int, was_asked: bool) -> SlurmEnd | None:
    """The end of a job all of whose ranks have exited with 0, as they have noted it, whatever Slurm says; or None.

    Args:
        directory: of the job's logs.
        nodes: how many it has.
        was_asked: whether it was asked to stop, if the batch script does not say.
    """
    status = ended_status(directory)
    if status is None and ended_well(directory) == nodes:
        status = STOPPED if was_asked else 0
    return None if status is None else SlurmEnd("FAILED" if status else "COMPLETED", status, 0)


def gone(job_id: str, slurm_job: int) -> JobFailed:
    """The event of a user's own job of which neither slurmctld nor accounting knows anything."""
    return JobFailed(job_id, f"Slurm job {slurm_job}: Slurm does not know it any more", lost=True)


def _failure(job_id: str, where: str, end: SlurmEnd, directory: Path | None) -> JobFailed:
    found = _failures(directory) if directory is not None else []
    if not found:
        what = exit_text(-end.signal if end.signal else end.status)
        detail = _last_complaint(directory / LOG) if directory is not None else ""
        return JobFailed(job_id, f"{where}: {what}" + (f": {detail}" if detail else ""))
    # As of the local engine: a rank that was killed is the cause of the failures of others, or else the first rank.
    first = min(found, key=lambda each: (each["rank"] is None, each["status"] >= 0, each["rank"] or 0))
    detail = f": {first['last_log_line']}" if first["last_log_line"] and first["status"] > 0 else ""
    who = "torchrun" if first["rank"] is None else f"rank {first['rank']}"
    why = f"{where}: {who} on host {first['host']} {exit_text(first['status'])}{detail}"
    return JobFailed(job_id, why, first["rank"], first["host"])


def _failures(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.glob(f"{FAILURE}*")):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue  # it is not on a file system that this host shares
    return found


def _last_complaint(log: Path) -> str:
    """The last line of a batch script's log that says more than that the job was ended."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    return said[-1] if said else ""


def event_of_node(node: SlurmNode, *, reservation: bool = False) -> HostOut | HostBack:
    """Whether a node takes jobs.

    A node that does not answer for now (``IDLE*``, NOT_RESPONDING) does: Slurm takes it down after SlurmdTimeout, and
    after a start of slurmctld no node has answered yet.

    Args:
        node: as Slurm has it.
        reservation: whether the jobs are submitted to a reservation.
    """
    states = _states(node.state)
    out = _OUT if reservation else {**_OUT, **_RESERVED}
    kind = next((word for state, word in out.items() if state in states), None)
    if kind is None:
        return HostBack(node.name)
    return HostOut(node.name, f"{kind} in Slurm" + (f": {one_line(node.reason)}" if node.reason else ""))


def _states(text: str) -> set[str]:
    """The state and the flags in ``IDLE+DRAIN``, ``DOWN*``, ``mixed$``."""
    marked = "".join(f"+{_MARKS[each]}" if each in _MARKS else each for each in text.upper())
    return {_NO_STATES.sub("", each) for each in marked.split("+")}
