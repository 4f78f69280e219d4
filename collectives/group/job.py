"""The training job of this process: its recorder, settings and profile, shared by all of its process groups."""

from __future__ import annotations

import atexit
import os
import time

import torch.distributed as dist

from collectives.core.notices import rank_on_host
from collectives.core.settings import Settings
from collectives.group.coordination import Coordination, coordination_of, identifier_of_run, store_of_run
from collectives.recording import optimizer_steps
from collectives.recording.demand import Profile, ProfileFile, as_document, profile_of
from collectives.recording.recorder import Recorder
from collectives.transport import daemon
from collectives.transport.iteration_boundaries import IterationBoundaries
from mltcp.daemon.client.membership import Membership
from mltcp.pacing.sockets import SocketPacer

WRITE_EVERY_S = 1.0
"""The profile's file is at most this old, and newer after the first iterations and after a failure."""

REPORT_EVERY_S = 0.25
"""Minimum interval between the iterations that are reported to the daemon."""

_EARLY_ITERATIONS = 4


class Job:
    """The job of this process, from its first process group to the end of the process.

    Attributes:
        recorder: records the job's operations; exists before the first group, so that hooks can be added.
        settings: read from the environment when the first group is made, like all that follows.
        rank: this process's in the job.
        ranks: number of ranks of the job.
        backend: name of the inner group's backend.
        membership: in the job at the host's daemon, if one answers.
        pacer: paces the job's sockets, if MLTCP_PACE asks for it.
        boundaries: reports the job's iterations to the kernel, unless it is not to; the pacer is told with it.
        coordination: with other jobs, if a gate or a placement service is configured.
    """

    def __init__(self) -> None:
        self.recorder = Recorder(
            after_iteration=self._after_iteration,
            after_last_group=self._after_last_group,
            save=self._save_soon,
        )
        self.settings = Settings()
        self.rank = 0
        self.ranks = 1
        self.backend = "gloo"
        self.membership: Membership | None = None
        self.pacer: SocketPacer | None = None
        self.boundaries: IterationBoundaries | None = None
        self.coordination: Coordination | None = None
        self._file: ProfileFile | None = None
        self._reports = False
        self._reported_s = 0.0
        self._written_s = 0.0
        self._opened = False

    def open(self, settings: Settings, rank: int, ranks: int, backend: str, store: dist.Store) -> None:
        """Set the job up for a new process group, which has `store`; the first one decides settings and rank.

        Raises:
            MltcpError: the profile's file cannot be written, or, under MLTCP_STRICT, the daemon refuses the job.
        """
        store = store_of_run(store)
        if self._opened:
            self._coordinate(store)
            return
        self.settings, self.rank, self.ranks, self.backend = settings, rank, ranks, backend
        if settings.profile is not None and rank == 0:
            self._file = ProfileFile(settings.profile)
            self._write()
        self.membership = daemon.join(settings, lambda: identifier_of_run(store), rank, ranks)
        if settings.pace is not None:
            self.pacer = SocketPacer(settings.pace.line_rate_bps, settings.pace.mltcp)
        self.boundaries = IterationBoundaries() if settings.reports_iterations else None
        self.coordination = coordination_of(settings, self.recorder)
        self._coordinate(store)
        self._reports = self.membership is not None and rank_on_host(rank) == 0
        optimizer_steps.install(self.recorder.step)
        atexit.register(self.close)
        self._opened = True

    def _coordinate(self, store: dist.Store) -> None:
        if self.coordination is not None:
            self.coordination.begin(store, self.rank, self.ranks)

    def close(self) -> None:
        """Write the last profile, and end all threads, before the interpreter ends.

        A thread that is inside torch while the interpreter is torn down would crash the process.
        """
        if self.coordination is not None:
            self.coordination.close()
        self.recorder.finish()
        self.recorder.completion.close()
        self._write()
        if self.pacer is not None:
            self.pacer.close()
        if self.membership is not None:
            self.membership.close()

    def forget(self) -> None:
        """In a forked child: drop the parent's hooks, threads and connections without ending them for the parent."""
        if not self._opened:
            return
        optimizer_steps.uninstall()
        self.recorder.completion.forget()
        atexit.unregister(self.close)
        if self.membership is not None:
            self.membership.close()
        if self.coordination is not None:
            self.coordination.forget()

    def profile(self) -> Profile:
        """The job's profile on this rank as of now."""
        recorder = self.recorder
        return profile_of(
            recorder.iterations(),
            recorder.detection(),
            job=self.settings.job,
            rank=self.rank,
            ranks=self.ranks,
            backend=self.backend,
            count=recorder.count,
        )

    # -- called by the recorder ----------------------------------------------------------------------------------------

    def _after_iteration(self) -> None:
        # On the thread that goes on to train: the next iteration may send at once.
        if self.boundaries is not None and self.recorder.knows_iterations:
            self.boundaries.report(self.recorder.count)
            if self.pacer is not None:
                self.pacer.report(self.recorder.count)
        if self._reports or self._file is not None:
            self.recorder.completion.run(self._publish)

    def _after_last_group(self) -> None:
        if self.coordination is not None:
            self.coordination.end_shifts()

    def _save_soon(self) -> None:
        if self._file is not None:
            self.recorder.completion.run(self._write)

    # -- on the completion thread --------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Write the profile and report the last iteration to the daemon, where they are due."""
        now_s = time.monotonic()
        if self._file is not None:
            early = self.recorder.count <= _EARLY_ITERATIONS
            if early or now_s - self._written_s >= WRITE_EVERY_S:
                self._written_s = now_s
                self._write()
        if self._reports and now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            self._report()

    def _report(self) -> None:
        last = self.recorder.last_iteration()
        if last is not None and self.membership is not None:
            self.membership.report(last.number, last.duration_s, last.sent_bytes)

    def _write(self) -> None:
        if self._file is not None:
            self._file.write(as_document(self.profile()))


_job = Job()


def current() -> Job:
    """This process's job."""
    return _job


def _replace_in_child() -> None:
    """Give a forked child, which has none of its parent's threads and connections, a job of its own."""
    global _job
    _job.forget()
    _job = Job()


os.register_at_fork(after_in_child=_replace_in_child)


def own_rank(group_rank: int) -> tuple[int, int]:
    """This process's rank in the job and the number of ranks, from the default group; (`group_rank`, -1) before it."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return group_rank, -1
