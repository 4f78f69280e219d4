"""Jobs that users submit to Slurm themselves and job_submit.lua holds: found, told, and let run on the chosen nodes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence

from mltcp.core.errors import MltcpError
from placement.engines.engine import EngineJob, HeldJob, HostShare, JobsHeld
from placement.slurm.commands import SlurmError, slurm
from placement.slurm.jobs import HeldSlurmJob, SlurmJob, held_jobs, job_numbered
from placement.slurm.reports import SlurmNode

ASK_AGAIN_S = 5.0
"""How often it is asked what the held jobs ask for, as their users may change it."""

_TRES_GPUS = re.compile(r"gres[:/]gpu(?::[A-Za-z][^:=,]*)?(?:[:=](\d+))?(?:,|$)")

_log = logging.getLogger("mltcp.placement")


class UsersJobs:
    """The held jobs from one look at Slurm to the next.

    Args:
        nodes: Slurm's nodes by name.
    """

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes = nodes
        self._waiting: dict[int, SlurmJob] = {}
        self._held: dict[int, HeldJob] = {}
        self._asked_at_s = 0.0
        self._told: tuple[HeldJob, ...] | None = None
        self._said: set[int] = set()

    def look(self, listed: Mapping[int, SlurmJob]) -> JobsHeld | None:
        """All jobs that wait to be placed, if they have changed.

        Raises:
            SlurmError: Slurm does not say what a job asks for.
        """
        waiting = {number: each for number, each in listed.items() if each.held and each.to_be_placed}
        now_s = time.monotonic()
        if waiting.keys() != self._waiting.keys() or now_s >= self._asked_at_s + ASK_AGAIN_S:
            asked = held_jobs(waiting) if waiting else {}
            self._waiting, self._asked_at_s = waiting, now_s
            self._said &= waiting.keys()
            self._held = {
                number: each for number in waiting if (each := self._held_job(number, asked.get(number)))
            }
        told = tuple(self._held.values())
        if told == self._told:
            return None
        self._told = told
        return JobsHeld(told)

    def release(self, job: EngineJob, placement: Sequence[HostShare]) -> SlurmJob:
        """Let a held job run on these nodes, if it has not been let.

        Raises:
            SlurmError: Slurm has no such job any more, nobody marked it to be placed, or Slurm refuses.
        """
        number = int(job.held)
        seen = job_numbered(number)
        told = self._waiting.get(number)
        if seen is None or seen.over:
            what = "none" if seen is None else seen.state
            raise SlurmError(f"Slurm job {number}: expected one that is held, got {what}")
        if not seen.to_be_placed or (told is not None and told.uid != seen.uid):
            raise SlurmError(f"Slurm job {number}: expected one that is held to be placed, got another one")
        if seen.held:
            hosts = ",".join(share.host for share in placement)
            nodes = f"NumNodes={len(placement)}-{len(placement)}"
            slurm(["scontrol", "update", f"JobId={number}", nodes, f"ReqNodeList={hosts}"])
            slurm(["scontrol", "release", str(number)])
        return seen

    def _held_job(self, number: int, asked: HeldSlurmJob | None) -> HeldJob | None:
        """What a job asks for; None: that cannot be told, and Slurm may run it as it likes."""
        try:
            if asked is None:
                raise SlurmError("squeue does not say what it asks for")
            return _as_held(asked, self._nodes)
        except (MltcpError, ValueError) as error:
            self._leave_to_slurm(number, str(error))
        return None

    def _leave_to_slurm(self, number: int, why: str) -> None:
        if number not in self._said:
            _log.warning("Slurm job %d is not placed, and left to Slurm: %s", number, why)
            self._said.add(number)
        slurm(["scontrol", "release", str(number)])


def _as_held(job: HeldSlurmJob, nodes: Mapping[str, SlurmNode]) -> HeldJob:
    """The GPUs that a job asks for. One that asks for a total gets all of them on a node, or else whole nodes.

    Slurm would otherwise choose how many of each node it gives to such a job, and nobody would know before.

    Raises:
        SlurmError: it asks for none.
    """
    per_node, per_job, per_task = (_gpus(tres) for tres in (job.per_node, job.per_job, job.per_task))
    gpus = job.nodes * per_node or per_job or per_task * job.tasks
    if not gpus:
        raise SlurmError("it asks for no GPUs by node, job or task")
    largest = max((each.gpus for each in nodes.values()), default=0)
    return HeldJob(str(job.number), job.owner, gpus, per_node or min(gpus, largest))


def _gpus(tres: str) -> int:
    """The number of GPUs in ``gres:gpu:4``, ``gres:gpu:a100:4``, ``gres/gpu:4`` or ``gres/gpu=4``."""
    found = _TRES_GPUS.search(tres)
    return 0 if found is None else int(found[1] or 1)
