"""The engine of Slurm: submits jobs to the nodes that the policy chose, follows and ends them."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from mltcp.core.errors import MltcpError
from placement.engines.bounded_log import LOG_BYTES
from placement.engines.engine import (
    EngineError,
    EngineEvent,
    EngineJob,
    EngineUnreachableError,
    HostOut,
    HostShare,
    HostUsed,
    JobHandle,
)
from placement.engines.engine_base import EngineBase, file_name
from placement.engines.slurm.commands import SlurmError, SlurmUnreachableError, slurm
from placement.engines.slurm.following import FollowedJob, order
from placement.engines.slurm.jobs import SlurmJob, jobs_of_user
from placement.engines.slurm.nodes import SlurmNode, nodes_here
from placement.engines.slurm.states import event_of_node
from placement.engines.slurm.submission import Submission, mark_of, name_in_slurm, submission
from placement.engines.slurm.users_jobs import UsersJobs, used_outside

LOOK_S = 1.0
"""How often Slurm is asked about all jobs at once."""

SILENCE_S = 30.0
"""After how long without a sign of life a job that Slurm has forgotten does not run any more."""

_NODES_S = 5.0
_STRAY_S = 30.0
"""How long a Slurm job of this engine may be there that the service does not know, before it is cancelled."""

_NUMBER = re.compile(r"(\d{1,10})(?:;\S*)?")

_ALL = ("Slurm's jobs", "Slurm's nodes")

_log = logging.getLogger("mltcp.placement")


class SlurmEngine(EngineBase[FollowedJob]):
    """Runs jobs under Slurm: one batch job each, on the nodes of its placement, with as many GPUs of each.

    Which GPUs of a node they are is Slurm's choice; all of a node are alike to policies. Jobs survive the engine and
    its process: the next one finds them by their numbers, and one that was submitted without the number having been
    kept by the comment that names its launch. Nothing runs twice: jobs of one name wait for each other in Slurm, and
    one of this service's that nobody knows is cancelled. What cannot be read of one job or node, or fails for it, is
    told once, and concerns that one alone.

    Args:
        logs: the directory for the jobs' directories, on a file system that the nodes share; created if missing.
        options: of sbatch for all jobs, such as ``--partition=train``, ``--cpus-per-gpu=8``, ``--time=2-0``.
        python: the interpreter on the nodes, with torch and this package.
        users_jobs: whether jobs that job_submit.lua holds are told, to be placed too; for that this process must be
            Slurm's user, root, or an operator of Slurm.
        look_s: seconds between two looks at Slurm.
        log_bytes: the most that the log of a rank may have; its start and its latest part are kept.
        silence_s: how long the nodes of a job that Slurm has forgotten show nothing before the job is given up.

    Raises:
        NotAvailableError: Slurm's commands are not installed.
        SlurmError: Slurm does not say which nodes there are.
    """

    jobs_survive = True

    def __init__(
        self,
        logs: Path,
        *,
        options: Sequence[str] = (),
        python: str = sys.executable,
        users_jobs: bool = False,
        log_bytes: int = LOG_BYTES,
        look_s: float = LOOK_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.nodes = {each.name: each for each in nodes_here().nodes}
        super().__init__({each.name: each.gpus or each.cpus for each in self.nodes.values()}, logs)
        self._options, self._python = tuple(options), python
        self._reservation = any(each.partition("=")[0] == "--reservation" for each in options)
        self._log_bytes = log_bytes
        self._uid = os.getuid()
        self._users_jobs = UsersJobs(self.nodes) if users_jobs else None
        self._mark = mark_of(self._logs)
        self._out: dict[str, str] | None = None
        self._used: dict[str, int] = {}
        self._told_used: dict[str, int] = {}
        self._stray_since: dict[int, float] = {}
        self._look_s, self._silence_s = look_s, silence_s
        self._nodes_at_s = 0.0
        self._complaints: dict[str, str] = {}
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slurm-engine", daemon=True)
        self._thread.start()

    def start(self, job: EngineJob, placement: Sequence[HostShare]) -> JobHandle:
        """Submit a job, or find it if it was; see :class:`placement.engines.engine.Engine`."""
        self._reserve(job, placement)
        directory = None
        try:
            if job.held:
                known = self._released(job, placement)
            else:
                directory = self._directory_of(job)
                known = self._submitted(job, placement, directory)
        except BaseException as error:
            with self._lock:
                self._free(job.id)
            if isinstance(error, SlurmUnreachableError):
                raise EngineUnreachableError(f"job {job.id}: {error}") from None
            if isinstance(error, SlurmError):
                raise EngineError(f"job {job.id}: {error}") from None
            raise
        followed = FollowedJob(
            *(job.id, known.id, known.name, known.comment, directory, tuple(placement), known.uid),
            known.restarts,
        )
        with self._lock:
            self._starting.discard(job.id)
            self._jobs[job.id] = followed
        self._wake.set()
        return followed.handle

    def stop(self, job_id: str, grace_s: float = 0.0) -> None:
        """Ask a job to stop, and cancel it after the grace; see :class:`placement.engines.engine.Engine`."""
        with self._lock:
            job = self._running(job_id)
            at_s = time.monotonic() + grace_s
            job.kill_at_s = at_s if job.kill_at_s is None else min(job.kill_at_s, at_s)
        self._wake.set()

    def decline(self, reference: str, why: str) -> None:
        """Give a held job back to Slurm; see :class:`placement.engines.engine.Engine`."""
        if self._users_jobs is not None:
            self._users_jobs.decline(int(reference), why)

    def recover(self, known: Sequence[JobHandle]) -> None:
        """Follow the jobs that an earlier engine submitted; their ends in the meantime are found and reported."""
        with self._lock:
            for handle in known:
                job = self._jobs[handle.job_id] = FollowedJob.of(handle)
                if all(share.host in self.nodes for share in job.placement):
                    ranks = sum(len(share.slots) for share in job.placement)
                    self._slots.take(EngineJob(handle.job_id, ("recovered",), ranks), job.placement)
        self._wake.set()

    def close(self) -> None:
        """Stop following; the jobs go on."""
        self._closed.set()
        self._wake.set()
        self._thread.join()

    def _directory_of(self, job: EngineJob) -> Path:
        directory = self._logs / f"{file_name(job.id)}-{quote(job.launch, safe='') or time.time_ns()}"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _submitted(self, job: EngineJob, placement: Sequence[HostShare], directory: Path) -> SlurmJob:
        """The job in Slurm: found, if this launch was submitted before, or new."""
        comment = f"mltcp:{self._mark}:{job.launch}"
        wanted = submission(
            job,
            placement,
            self.nodes,
            name=name_in_slurm(job.id, self._mark),
            comment=comment,
            directory=directory,
            python=self._python,
            options=self._options,
            log_bytes=self._log_bytes,
        )
        found = self._found(wanted.name, comment) if job.launch else None
        number = self._submit(wanted, comment) if found is None else found.id
        return SlurmJob(number, "PENDING", self._uid, name=wanted.name, comment=comment)

    def _released(self, job: EngineJob, placement: Sequence[HostShare]) -> SlurmJob:
        if self._users_jobs is None:
            raise SlurmError(f"Slurm job {job.held}: expected --users-jobs with a job that a user submitted")
        return self._users_jobs.release(job, placement)

    def _found(self, name: str, comment: str) -> SlurmJob | None:
        """The job of this account by its name, which is of one job, and its comment, which names the launch."""
        for each in jobs_of_user(self._uid).jobs.values():
            if (each.uid, each.name, each.comment) == (self._uid, name, comment):
                return each
        return None

    def _submit(self, wanted: Submission, comment: str) -> int:
        """Hand a job to sbatch; returns its number.

        Sites let sbatch print more than that, and fail behind it: then the job is looked for.

        Raises:
            SlurmUnreachableError: it may have been submitted or not.
            SlurmError: it was refused.
        """
        failure: SlurmError = SlurmUnreachableError(
            "sbatch: expected the number of a job, got none, and squeue lists no such job"
        )
        try:
            number = number_in(slurm(["sbatch", *wanted.arguments], text=wanted.script))
            if number is not None:
                return number
        except SlurmUnreachableError:
            raise
        except SlurmError as error:
            failure = error
        found = self._found(wanted.name, comment)
        if found is None:
            raise failure
        return found.id

    def _watch(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            with self._apart("Slurm's jobs"):
                self._look()
            if time.monotonic() >= self._nodes_at_s:
                with self._apart("Slurm's nodes"):
                    self._look_at_nodes()
                    self._nodes_at_s = time.monotonic() + _NODES_S
            self._wake.wait(self._look_s)

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Keep what fails inside from all that is outside, and say so once until it has succeeded again.

        A slurmctld that does not answer is said of all, and not of each job that it is asked about.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, SlurmUnreachableError) and what not in _ALL:
                raise
            said = f"{type(error).__name__}: {error}"
            if self._complaints.get(what) != said:
                _log.warning("%s: %s", what, error, exc_info=not isinstance(error, MltcpError))
            self._complaints[what] = said
        else:
            if self._complaints.pop(what, None) is not None:
                _log.info("%s: there is an answer again", what)

    def _look(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
            starting = {name_in_slurm(job_id, self._mark) for job_id in self._starting}
        queue = jobs_of_user(self._uid if self._users_jobs is None else None)
        with self._apart("squeue"):
            if queue.unreadable:
                raise SlurmError(f"{queue.unreadable} jobs cannot be read")
        for job in jobs:
            with self._apart(f"job {job.job_id}"):
                end = job.look(queue.jobs.get(job.number), self._silence_s, self._events.put)
                if end is not None:
                    self._ended(job, end)
        self._cancel_strays(queue.jobs, {job.number for job in jobs}, starting)
        if self._users_jobs is not None:
            with self._apart("jobs of users that are held"):
                placed = None if starting else {job.number for job in jobs}
                held = self._users_jobs.look(queue.jobs, placed)
                if held is not None:
                    self._events.put(held)

    def _ended(self, job: FollowedJob, event: EngineEvent) -> None:
        with self._lock:
            self._free(job.job_id)
            for what in (f"job {job.job_id}", f"job {job.job_id}, which waits"):
                self._complaints.pop(what, None)
        self._events.put(event)

    def _cancel_strays(self, listed: Mapping[int, SlurmJob], known: set[int], starting: set[str]) -> None:
        """Cancel jobs of this engine that nobody knows: sbatch was accepted, and its answer did not arrive.

        The mark is in everybody's squeue: only jobs of the service's own account are its.
        """
        now_s = time.monotonic()
        strays = [
            each
            for each in listed.values()
            if each.uid == self._uid
            and each.comment.startswith(f"mltcp:{self._mark}:")
            and not (each.over or each.id in known or each.name in starting)
        ]
        self._stray_since = {each.id: self._stray_since.get(each.id, now_s) for each in strays}
        for each in strays:
            if now_s - self._stray_since[each.id] >= _STRAY_S:
                _log.warning(
                    "Slurm job %d (%s) belongs to no job of the service: cancelled", each.id, each.name
                )
                order(["scancel", f"--user={self._uid}", f"--name={each.name}", str(each.id)])

    def _look_at_nodes(self) -> None:
        found = {each.name: each for each in nodes_here().nodes}
        out: dict[str, str] = {}
        for name in self.nodes | found:
            event = (
                event_of_node(found[name], reservation=self._reservation)
                if name in found
                else HostOut(name, "not listed by Slurm")
            )
            if isinstance(event, HostOut):
                out[event.host] = event.why
            before = None if self._out is None else self._out.get(name, "")
            if before != out.get(name, ""):
                self._events.put(event)
        self._out = out
        self._look_at_gpus(found.values())
        if self._users_jobs is not None:
            self._users_jobs.nodes = {name: found.get(name, node) for name, node in self.nodes.items()}
        self._leave_before_start(out)

    def _look_at_gpus(self, nodes: Iterable[SlurmNode]) -> None:
        """Tell how many GPUs of each node others have; more of them when they have been seen twice.

        A job of ours that has just started or ended would be taken for another one otherwise.
        """
        with self._lock:
            jobs = list(self._jobs.values())
        for node in nodes:
            used = used_outside(node, (job.gpus_on(node.name) for job in jobs))
            told, before = self._told_used.get(node.name, 0), self._used.get(node.name, 0)
            self._used[node.name] = used
            sure = min(used, before)
            if sure != told and node.name in self.nodes:
                self._told_used[node.name] = sure
                self._events.put(HostUsed(node.name, sure))

    def _leave_before_start(self, out: Mapping[str, str]) -> None:
        """Cancel jobs that wait in Slurm for a node that takes none."""
        with self._lock:
            waiting = [job for job in self._jobs.values() if not job.has_started]
        for job in waiting:
            host = next((share.host for share in job.placement if share.host in out), None)
            if host is not None:
                with self._apart(f"job {job.job_id}, which waits"):
                    job.leave(f"host {host}: {out[host]}")


def number_in(printed: str) -> int | None:
    """The number in what ``sbatch --parsable`` printed; None: no line has one, or several have."""
    lines = [line.strip() for line in printed.splitlines()]
    numbers = {int(found[1]) for line in lines if (found := _NUMBER.fullmatch(line))}
    return numbers.pop() if len(numbers) == 1 else None
