"""Jobs that users submit to Slurm themselves and job_submit.lua holds: found, told, and let run on the chosen nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.engines.engine import EngineJob, HeldJob, HostShare, JobsHeld
from placement.slurm.commands import SlurmError, SlurmUnreachableError, slurm
from placement.slurm.jobs import HELD, HeldSlurmJob, SlurmJob, held_job, jobs_of_user
from placement.slurm.reports import SlurmNode


class UsersJobs:
    """The held jobs from one look at Slurm to the next.

    Args:
        nodes: Slurm's nodes by name.
    """

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self._nodes = nodes
        self._held: dict[int, HeldJob | None] = {}
        self._told: tuple[HeldJob, ...] | None = None

    def look(self, listed: Mapping[int, SlurmJob]) -> JobsHeld | None:
        """All jobs that wait to be placed, if they have changed; each is asked about once, as few may be for us.

        Raises:
            SlurmUnreachableError: Slurm does not answer.
        """
        waiting = [each.id for each in listed.values() if each.state == "PENDING" and each.reason in HELD]
        self._held = {number: self._held[number] for number in waiting if number in self._held}
        for number in waiting:
            if number not in self._held:
                try:
                    self._held[number] = _as_held(held_job(number), self._nodes)
                except SlurmUnreachableError:
                    raise
                except SlurmError:
                    continue  # it has been cancelled meanwhile
        told = tuple(each for each in self._held.values() if each is not None)
        if told == self._told:
            return None
        self._told = told
        return JobsHeld(told)


def release_held(job: EngineJob, placement: Sequence[HostShare]) -> SlurmJob:
    """Let a held job run on these nodes, if it has not been let.

    Raises:
        SlurmError: Slurm has no such job any more, or refuses.
    """
    number = int(job.held)
    listed = {each.id: each for each in jobs_of_user(None)}
    seen = listed.get(number)
    if seen is None or seen.over:
        raise SlurmError(
            f"Slurm job {number}: expected one that is held, got {'none' if seen is None else seen.state}"
        )
    if seen.state == "PENDING" and seen.reason in HELD:
        hosts = ",".join(share.host for share in placement)
        nodes = f"NumNodes={len(placement)}-{len(placement)}"
        slurm(["scontrol", "update", f"JobId={number}", nodes, f"ReqNodeList={hosts}"])
        slurm(["scontrol", "release", str(number)])
    return seen


def _as_held(job: HeldSlurmJob | None, nodes: Mapping[str, SlurmNode]) -> HeldJob | None:
    """The GPUs that a job asks for. One that asks for a total gets all of them on a node, or else whole nodes.

    Slurm would otherwise choose how many of each node it gives to such a job, and nobody would know before.
    """
    if job is None:
        return None
    largest = max(each.gpus for each in nodes.values())
    per_host = job.gpus_per_node or (job.gpus if job.gpus <= largest else largest)
    return HeldJob(str(job.number), job.owner, job.gpus, per_host)
