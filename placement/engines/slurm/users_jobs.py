"""Jobs that users submit to Slurm themselves and job_submit.lua holds: found, told, and let run on the chosen nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mltcp.core.errors import MltcpError
from mltcp.core.one_line import one_line
from placement.engines.engine import EngineJob, HeldJob, HostShare, JobsHeld
from placement.engines.slurm.following import order
from placement.engines.slurm.held_request import LeftToSlurmError, NotYetError, held_request
from placement.slurm.commands import SlurmError, SlurmUnreachableError, slurm
from placement.slurm.jobs import (
    AWAITED,
    LEFT,
    PLACE_ME,
    PLACED,
    HeldSlurmJob,
    SlurmJob,
    held_jobs,
    job_numbered,
)
from placement.slurm.reports import SlurmNode

ASK_AGAIN_S = 5.0
"""How often it is asked what the held jobs ask for, as their users may change it."""

_NEVER = "now+3650days"
_LONGEST_MARK = 200

_log = logging.getLogger("mltcp.placement")


class UsersJobs:
    """The held jobs from one look at Slurm to the next.

    Slurm does not watch the dependencies of jobs that are held. One that has some is released with a begin that never
    comes, and held again when Slurm has it wait for nothing but that begin.

    Attributes:
        nodes: Slurm's nodes by name.
    """

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self.nodes = nodes
        self._waiting: dict[int, SlurmJob] = {}
        self._held: dict[int, HeldJob] = {}
        self._asked_at_s = 0.0
        self._told: tuple[HeldJob, ...] | None = None
        self._said: dict[int, str] = {}

    def look(self, listed: Mapping[int, SlurmJob]) -> JobsHeld | None:
        """All jobs that wait to be placed, if they have changed.

        Raises:
            SlurmError: Slurm does not say what a job asks for.
        """
        for job in listed.values():
            if job.state == "PENDING" and job.mark.startswith(AWAITED):
                self._look_at_awaited(job)
        waiting = {number: each for number, each in listed.items() if each.held and each.to_be_placed}
        now_s = time.monotonic()
        if waiting.keys() != self._waiting.keys() or now_s >= self._asked_at_s + ASK_AGAIN_S:
            asked = held_jobs(waiting) if waiting else {}
            self._waiting, self._asked_at_s = waiting, now_s
            self._said = {number: why for number, why in self._said.items() if number in listed}
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
            SlurmError: Slurm has no such job any more, nobody marked it to be placed, it asks for other GPUs now, or
                Slurm refuses.
        """
        number = int(job.held)
        seen = job_numbered(number)
        told = self._waiting.get(number)
        if seen is None or seen.over:
            what = "none" if seen is None else seen.state
            raise SlurmError(f"Slurm job {number}: expected one that is held, got {what}")
        if seen.mark not in (PLACE_ME, PLACED) or (told is not None and told.uid != seen.uid):
            raise SlurmError(f"Slurm job {number}: expected one that is held to be placed, got another one")
        if seen.held:
            self._check_unchanged(number, placement)
            hosts = ",".join(share.host for share in placement)
            nodes = f"NumNodes={len(placement)}-{len(placement)}"
            slurm(["scontrol", "update", f"JobId={number}", nodes, f"ReqNodeList={hosts}"])
            slurm(["scontrol", "release", str(number)])
            order(["scontrol", "update", f"JobId={number}", f"AdminComment={PLACED}"])
        return seen

    def decline(self, number: int, why: str) -> None:
        """Let Slurm run a job as it likes, which cannot be placed.

        One that has been changed meanwhile, or may not run for now, is told again when it is due.

        Raises:
            SlurmError: Slurm does not say what it asks for.
        """
        asked = held_jobs([number]).get(number)
        if asked is None:
            return
        self._told, self._asked_at_s = None, 0.0
        with suppress(LeftToSlurmError):
            try:
                if held_request(asked, self.nodes, time.time()) != self._held.get(number):
                    return
            except NotYetError:
                return
        self._leave_to_slurm(number, why)

    def _check_unchanged(self, number: int, placement: Sequence[HostShare]) -> None:
        asked = held_jobs([number]).get(number)
        if asked is None:
            raise SlurmError(f"Slurm job {number}: squeue does not say what it asks for")
        wanted = held_request(asked, self.nodes, time.time())
        shares = {share.host: len(share.slots) for share in placement}
        fits = set(shares.values()) == {wanted.per_host} and sum(shares.values()) == wanted.gpus
        if not fits or (wanted.hosts and not shares.keys() <= set(wanted.hosts)):
            raise SlurmError(f"Slurm job {number}: it asks for other GPUs or nodes than it did")

    def _held_job(self, number: int, asked: HeldSlurmJob | None) -> HeldJob | None:
        """What a job asks for; None: it may not run yet, or cannot be placed, and Slurm may run it as it likes."""
        try:
            if asked is None:
                raise SlurmError("squeue does not say what it asks for")
            return held_request(asked, self.nodes, time.time())
        except NotYetError as error:
            self._say(number, f"is not placed yet: {error}")
            if asked is not None and error.dependency:
                begin = asked.begins or "now"
                order(
                    [
                        "scontrol",
                        "update",
                        f"JobId={number}",
                        f"StartTime={_NEVER}",
                        f"AdminComment={AWAITED} {begin}",
                    ]
                )
                order(["scontrol", "release", str(number)])
        except SlurmUnreachableError:
            raise
        except (MltcpError, ValueError) as error:
            self._leave_to_slurm(number, str(error))
        return None

    def _look_at_awaited(self, job: SlurmJob) -> None:
        """Hold a job again that may run but for the begin that was given to it."""
        if job.reason != "BeginTime" and not job.held:
            return
        begin = job.mark.removeprefix(AWAITED).strip() or "now"
        order(["scontrol", "hold", str(job.id)])
        order(["scontrol", "update", f"JobId={job.id}", f"StartTime={begin}", f"AdminComment={PLACE_ME}"])

    def _leave_to_slurm(self, number: int, why: str) -> None:
        seen = job_numbered(number)
        if seen is None or not (seen.held and seen.to_be_placed):
            return
        self._say(number, f"is not placed, and left to Slurm: {why}")
        mark = f"{LEFT}: {one_line(why)}"[:_LONGEST_MARK]
        order(["scontrol", "release", str(number)])
        order(["scontrol", "update", f"JobId={number}", f"AdminComment={mark}"])

    def _say(self, number: int, what: str) -> None:
        """Log it, if it was not the last that was said of the job."""
        if self._said.get(number) != what:
            self._said[number] = what
            _log.info("Slurm job %d %s", number, one_line(what))
