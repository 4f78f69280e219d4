"""Follows the jobs of the engine from one look at Slurm to the next: what has become of each, and what is to do."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mltcp.core.one_line import one_line
from placement.engines.engine import (
    EngineEvent,
    HostShare,
    JobFailed,
    JobHandle,
    JobSeen,
    JobStarted,
    JobStopped,
)
from placement.engines.slurm.commands import SlurmError, slurm
from placement.engines.slurm.jobs import (
    LEFT,
    PLACE_ME,
    WAITING,
    SlurmEnd,
    SlurmJob,
    accounted_end,
    gpu_indices,
    job_numbered,
)
from placement.engines.slurm.records import beats, give_up, given_up
from placement.engines.slurm.states import event_of_end, gone, own_end, waiting_text

_ASK_AGAIN_S = 2.0
_CANCEL_AGAIN_S = 30.0

UNSEEN_END_S = 60.0
"""How long after its own end a job is cancelled that Slurm still takes for running.

A slurmctld that was restarted on a busy machine takes longer than 15 s at times to hear of an end that is none to mend.
"""

TAKE_BACK_S = 60.0
"""For how long a user's own job waits on its nodes for what is neither their being busy nor to pass soon."""

_PASSES = frozenset({"", "None", "Resources", "Priority", "BeginTime", "Prolog", "Cleaning"})
_LOOKS_TO_BE_GONE = 3

_log = logging.getLogger("mltcp.placement")


@dataclass
class FollowedJob:
    """A job that has been submitted and whose end has not been told; a user's own has no directory.

    Attributes:
        job_id: the service's name of it.
        number, name, comment: in Slurm, as submitted; one that forgets jobs gives their numbers out again.
        directory: of its logs.
        placement: the slots that it has.
        uid: the account whose job it is in Slurm; None: the handle of an earlier version does not say.
        restarts: how often Slurm had put it back before it was placed; None: as with `uid`.
        kill_at_s: when it is cancelled that is asked to stop now; None: it is not to stop.
    """

    job_id: str
    number: int
    name: str
    comment: str
    directory: Path | None
    placement: tuple[HostShare, ...] = ()
    uid: int | None = None
    restarts: int | None = None
    kill_at_s: float | None = None
    has_started: bool = False
    _seen: SlurmJob | None = None
    _left: str = ""
    _text: str = ""
    _ask_at_s: float = 0.0
    _missed: int = 0
    _lost: JobFailed | None = None
    _beats: tuple[str, ...] | None = None
    _beats_at_s: float = 0.0
    _ended_at_s: float | None = None
    _stuck_since_s: float | None = None

    @classmethod
    def of(cls, handle: JobHandle) -> Self:
        """The job of a handle that an earlier engine has given out; see `handle`."""
        reference = json.loads(handle.reference)
        directory = reference["directory"]
        return cls(
            handle.job_id,
            reference["slurm"],
            reference["name"],
            reference["comment"],
            None if directory is None else Path(directory),
            tuple(HostShare(host, tuple(slots)) for host, slots in reference["placement"]),
            reference.get("uid", os.getuid() if directory is not None else None),
            reference.get("restarts"),
        )

    @property
    def handle(self) -> JobHandle:
        """The part of it that the service stores."""
        reference = {
            "slurm": self.number,
            "name": self.name,
            "comment": self.comment,
            "directory": None if self.directory is None else os.fspath(self.directory),
            "placement": [[share.host, list(share.slots)] for share in self.placement],
            "uid": self.uid,
            "restarts": self.restarts,
        }
        return JobHandle(self.job_id, json.dumps(reference))

    def gpus_on(self, host: str) -> int:
        """How many GPUs of a host Slurm has given it, as far as has been seen."""
        if self._seen is None or self._seen.state == "PENDING" or self._lost is not None:
            return 0
        return sum(len(share.slots) for share in self.placement if share.host == host)

    def is_this(self, listed: SlurmJob | None) -> bool:
        """Whether it is what Slurm lists under its number: of its account, and with one of the texts as submitted.

        Either text may have been changed since; a user's own job may have got others, as it likes.
        """
        if listed is None or self.uid not in (None, listed.uid):
            return False
        if self.directory is None and self.uid is not None:
            return True
        return listed.name == self.name or listed.comment == self.comment

    def look(
        self, listed: SlurmJob | None, silence_s: float, tell: Callable[[EngineEvent], None]
    ) -> EngineEvent | None:
        """Do what is to be done for the job, and return its end, if this is it.

        Args:
            listed: what Slurm lists under its number.
            silence_s: after how long without a sign of life a lost job does not run any more.
            tell: called with further events.

        Raises:
            SlurmError: it is not listed, and Slurm does not say whether it is there.
        """
        if self._lost is not None:
            return self._await_silence(silence_s)
        seen = listed if self.is_this(listed) else self._asked_for()
        if seen is None or seen.over:
            return self._end(seen)
        self._missed, self._seen, self.uid = 0, seen, seen.uid
        if seen.state == "PENDING" and (self.has_started or self._is_requeued(seen)):
            # By Slurm itself, to wait for the same nodes or, where a launch has failed, for an administrator.
            self.leave(f"Slurm job {self.number}: Slurm requeued it")
        if self.directory is None and seen.state == "PENDING":
            if self._left:
                return self._hold_again()
            if self._is_stuck(seen):
                if not (seen.held and seen.to_be_placed):
                    return self._leave_to_slurm(seen.reason)
                # A slurmctld that was killed has forgotten its release: nobody else would release it.
                self.leave(f"Slurm job {self.number}: Slurm holds it as before it was placed")
                return self._hold_again()
        if not self.has_started and seen.state not in WAITING:
            self.has_started = True
            tell(JobStarted(self.job_id))
        self._tell_text(seen, tell)
        if self.kill_at_s is not None:
            self._press(seen, self.kill_at_s)
        if self.directory is not None and seen.state == "RUNNING" and self._has_ended_unseen():
            self.cancel()
        return None

    def _hold_again(self) -> EngineEvent:
        """Hold a user's own job as it was before it was placed.

        Raises:
            SlurmError: Slurm refuses; it may have started it.
        """
        slurm(["scontrol", "hold", str(self.number)])
        place_again(self.number)
        return self._lost_for(self._left)

    def _is_stuck(self, seen: SlurmJob) -> bool:
        """Whether for `TAKE_BACK_S` Slurm has not been able to start a user's own job, but for other jobs."""
        now_s = time.monotonic()
        if seen.reason in _PASSES:
            self._stuck_since_s = None
            return False
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        return now_s >= self._stuck_since_s + TAKE_BACK_S

    def _leave_to_slurm(self, reason: str) -> EngineEvent:
        """Take a user's own job back from its nodes, of which it needs none any more if its user has held it.

        Raises:
            SlurmError: Slurm refuses; it may have started it.
        """
        mark = f"{LEFT}: {reason} on {','.join(share.host for share in self.placement)}"
        slurm(["scontrol", "update", f"JobId={self.number}", "ReqNodeList=", f"AdminComment={mark[:200]}"])
        why = f"Slurm job {self.number}: Slurm does not start it where it was placed ({reason}), and has it again"
        _log.info("%s", one_line(why))
        return JobStopped(self.job_id, why=why)

    def _asked_for(self) -> SlurmJob | None:
        """What Slurm says when it is asked for the number alone: not to be listed is not to be gone."""
        asked = job_numbered(self.number)
        return asked if self.is_this(asked) else None

    def _has_ended_unseen(self) -> bool:
        """Whether the job has noted its own end for `UNSEEN_END_S`, and for that time again at each further call.

        A slurmctld that was killed before it wrote the end down takes the job for running, and does not ask its nodes.
        """
        if self._own_end() is None:
            return False
        now_s = time.monotonic()
        if self._ended_at_s is None:
            self._ended_at_s = now_s
        if now_s < self._ended_at_s + UNSEEN_END_S:
            return False
        self._ended_at_s = now_s
        return True

    def _own_end(self) -> SlurmEnd | None:
        if self.directory is None:
            return None
        return own_end(self.directory, len(self.placement), self.kill_at_s is not None)

    def _is_requeued(self, seen: SlurmJob) -> bool:
        """Whether Slurm has begun to run it and put it back, be it between two looks."""
        if self.directory is not None:
            return seen.restarts > 0
        return self.restarts is not None and seen.restarts > self.restarts

    def leave(self, why: str) -> None:
        """Take it out of Slurm so that it is started again, elsewhere or here; a user's own is held there again."""
        self._left = self._left or why
        if self.directory is not None:
            give_up(self.directory, self._left)
            self.cancel()

    def cancel(self, *options: str) -> None:
        """Have scancel end it, or do what the options say.

        By account and name too, as its number may be another job's now.
        """
        whose = [] if self.uid is None else [f"--user={self.uid}"]
        if self.directory is not None:
            whose.append(f"--name={self.name if self._seen is None else self._seen.name}")
        order(["scancel", *options, *whose, str(self.number)])

    def _end(self, seen: SlurmJob | None) -> EngineEvent | None:
        end = self._accounted_end() if seen is None else seen.end
        # What the steps say counts: Slurm may have forgotten the start of a job that has ended since, which was then
        # cancelled as one that waits; or it has not seen its end.
        end = self._own_end() or end
        if end is not None:
            left = self._left_event() if end.state in ("CANCELLED", "FAILED") else None
            if left is not None:
                return left if self._never_ran() else self._lose(left)
            event = event_of_end(self.job_id, self.number, end, self.directory)
            return self._lose(event) if isinstance(event, JobFailed) and event.lost else event
        if seen is None:
            # A slurmctld that has just started may not have read its state yet.
            self._missed += 1
            if self._missed >= _LOOKS_TO_BE_GONE:
                if self.directory is None:
                    return gone(self.job_id, self.number)
                return self._lose(self._lost_for(f"Slurm job {self.number}: Slurm has forgotten it"))
        return None

    def _accounted_end(self) -> SlurmEnd | None:
        if self.uid is None:
            return None
        name = None if self.directory is None else self.name
        return accounted_end(self.number, self.uid, name, "" if self._seen is None else self._seen.submitted)

    def _left_event(self) -> JobFailed | None:
        """The event of a job that was taken out of Slurm to be started again; None: it was not."""
        if self.directory is None or self.kill_at_s is not None:
            return None
        why = given_up(self.directory)
        return None if why is None else self._lost_for(why)

    def _never_ran(self) -> bool:
        assert self.directory is not None
        return bool(self._left) and not self.has_started and not beats(self.directory)

    def _lose(self, event: JobFailed) -> EngineEvent | None:
        """Take it for lost, but for what its nodes write down: Slurm may be wrong, or they may be out of its reach."""
        if self.directory is None:
            return event
        self._lost = event
        return None

    def _lost_for(self, why: str) -> JobFailed:
        return JobFailed(self.job_id, why, lost=True, again=True)

    def _await_silence(self, silence_s: float) -> EngineEvent | None:
        assert self.directory is not None
        assert self._lost is not None
        end = self._own_end()
        if end is not None:
            return event_of_end(self.job_id, self.number, end, self.directory)
        now_s, heard = time.monotonic(), beats(self.directory)
        if self.kill_at_s is not None and now_s >= self.kill_at_s:
            give_up(self.directory, "it was to stop")
        if heard != self._beats:
            self._beats, self._beats_at_s = heard, now_s
        elif now_s >= self._beats_at_s + silence_s:
            give_up(self.directory, self._lost.why)
            return self._lost if self.kill_at_s is None else JobStopped(self.job_id)
        return None

    def _tell_text(self, seen: SlurmJob, tell: Callable[[EngineEvent], None]) -> None:
        if self._text.startswith(waiting_text(seen)):
            return
        gpus = ""
        if seen.state == "RUNNING":
            with suppress(SlurmError):
                gpus = gpu_indices(seen, [share.host for share in self.placement])
        self._text = waiting_text(seen, gpus)
        tell(JobSeen(self.job_id, self._text))

    def _press(self, seen: SlurmJob, kill_at_s: float) -> None:
        """Ask it to stop, or cancel it if it has nothing to stop or has not stopped in time."""
        now_s = time.monotonic()
        if self.directory is None:
            if now_s >= self._ask_at_s:
                self._ask_at_s = now_s + _CANCEL_AGAIN_S
                self.cancel()  # with Slurm's own grace, KillWait
        elif now_s >= kill_at_s or seen.state in WAITING:
            self.cancel("--signal=KILL" if seen.state == "RUNNING" else "--quiet")
        elif now_s >= self._ask_at_s:
            # Again and again: a signal before the script's trap, or before the step listens, has no effect.
            self._ask_at_s = now_s + _ASK_AGAIN_S
            self.cancel("--batch", "--signal=URG")


def place_again(number: int) -> None:
    """Have a user's own job, which is held, placed anew. Should that fail, `UsersJobs.look` does it."""
    order(["scontrol", "update", f"JobId={number}", "ReqNodeList=", f"AdminComment={PLACE_ME}"])


def order(command: Sequence[str]) -> None:
    """Run a command whose failure the next look shows."""
    with suppress(SlurmError):
        slurm(command)
