"""The job of this process: its recorder, its settings, its profile; made with the first process group."""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass, field

import torch.distributed as dist

from collectives.agent.coordination import Steering, steering_of
from collectives.core.notices import rank_on_host
from collectives.core.settings import Settings
from collectives.recording import optimizer_steps
from collectives.recording.demand import Profile, as_document, profile_of
from collectives.recording.profile_file import ProfileFile
from collectives.recording.recorder import Recorder
from collectives.transport import daemon
from mltcp.daemon.client.membership import Membership
from mltcp.pacing.sockets import SocketPacer

WRITE_EVERY_S = 1.0
"""The profile's file is at most this old, and newer after the first iterations and after a failure."""

REPORT_EVERY_S = 0.25
"""The daemon is told of an iteration at most so often."""

_EARLY_ITERATIONS = 4


@dataclass
class Job:
    """What all process groups of a process share."""

    recorder: Recorder = field(default_factory=Recorder)
    settings: Settings = field(default_factory=Settings)
    rank: int = 0
    ranks: int = 1
    backend: str = "gloo"
    membership: Membership | None = None
    pacer: SocketPacer | None = None
    steering: Steering | None = None
    _file: ProfileFile | None = None
    _reported_s: float = 0.0
    _written_s: float = 0.0
    _opened: bool = False

    def open(self, settings: Settings, rank: int, ranks: int, backend: str, store: dist.Store) -> None:
        """A process group is being made; the first one decides who this rank is. `store` is where its ranks meet.

        Raises:
            MltcpError: the profile's file cannot be written, or, under MLTCP_STRICT, the daemon refuses the job.
        """
        if self._opened:
            self._steer(store)
            return
        self.settings, self.rank, self.ranks, self.backend = settings, rank, ranks, backend
        if settings.profile is not None and rank == 0:
            self._file = ProfileFile(settings.profile)
            self.recorder.keep_now = self._write
            self._write()
        self.membership = daemon.join(settings, store, rank, ranks)
        if settings.pace is not None:
            self.pacer = SocketPacer(settings.pace.line_rate_bps, settings.pace.mltcp)
        self.steering = steering_of(settings, self.recorder)
        self._steer(store)
        reports = self.membership is not None and rank_on_host(rank) == 0
        if reports or self._file is not None:
            self.recorder.after_iteration = lambda: self._after_iteration(reports)
        optimizer_steps.install(self.recorder.step)
        atexit.register(self.close)
        self._opened = True

    def _steer(self, store: dist.Store) -> None:
        if self.steering is not None:
            self.steering.begin(store, self.rank, self.ranks)

    def close(self) -> None:
        """The process ends: write what there is, and end the completion thread.

        A thread that is inside torch when the interpreter goes would take the process down with it.
        """
        if self.steering is not None:
            self.steering.close()
        self.recorder.finish()
        self.recorder.completion.close()
        self._write()
        if self.pacer is not None:
            self.pacer.close()
        if self.membership is not None:
            self.membership.close()

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

    def _after_iteration(self, reports: bool) -> None:
        """On the completion thread: bring the file and the daemon up to date."""
        now_s = time.monotonic()
        if self._file is not None:
            self._keep(now_s)
        if reports and now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            self._report()

    def _report(self) -> None:
        last = self.recorder.last_iteration()
        if last is not None and self.membership is not None:
            self.membership.report(last.number, last.duration_s, last.sent_bytes)

    def _keep(self, now_s: float) -> None:
        """Bring the file up to date, not more often than need be."""
        early = self.recorder.count <= _EARLY_ITERATIONS
        if early or now_s - self._written_s >= WRITE_EVERY_S:
            self._written_s = now_s
            self._write()

    def _write(self) -> None:
        if self._file is not None:
            self._file.write(as_document(self.profile()))


_job = Job()


def current() -> Job:
    """This process's job."""
    return _job


def _forget_in_child() -> None:
    """A forked child has none of its parent's threads or connections: it starts a job of its own."""
    global _job
    if _job._opened:
        optimizer_steps.uninstall()
        _job.recorder.completion.forget()
        atexit.unregister(_job.close)
        if _job.membership is not None:
            _job.membership.close()
        if _job.steering is not None:
            _job.steering.forget()
    _job = Job()


os.register_at_fork(after_in_child=_forget_in_child)


def own_rank(group_rank: int) -> tuple[int, int]:
    """This process's rank and the number of ranks in the job: the default group's, if there is one yet."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return group_rank, -1
