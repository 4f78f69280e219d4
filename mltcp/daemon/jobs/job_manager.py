"""Runs the jobs of this host: their registration, flows and counters, each under its mechanism."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.core.user_lines import of_user
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.job import NO_CONTROL, UNCONTROLLED, Job, Mechanism
from mltcp.daemon.jobs.job_table import JobTable, Limits
from mltcp.daemon.jobs.registered_cgroups import RegisteredCgroup, RegisteredCgroups
from mltcp.ebpf.congestion_controls import CONTROLS, available

_log = logging.getLogger("mltcp.daemon")

DEFAULT_CONTROL = "default"
"""Asked for by a job that leaves the choice of a congestion control to the daemon."""

Listener = Callable[[Job, dict[str, Any]], None]


class JobManager:
    """The jobs of this host.

    Args:
        mechanisms: a job that asks for a congestion control gets the first one that accepts it.
        default: the mechanism of a job that asks for none in particular.
        attachments: the cgroups of processes that asked to be attached.
        cgroups: that root has registered.
        aggressiveness: F of a job that does not specify it.
        listener: called with every finished iteration.
        limits: of users.

    Attributes:
        refused: the number of jobs that the host could not control.
    """

    def __init__(
        self,
        mechanisms: Sequence[Mechanism],
        default: Mechanism,
        attachments: Attachments,
        cgroups: RegisteredCgroups,
        aggressiveness: Aggressiveness,
        listener: Listener,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        self.mechanisms = tuple(mechanisms)
        self.attachments = attachments
        self.cgroups = cgroups
        self.aggressiveness = aggressiveness
        self.limits = limits
        self.jobs = JobTable(limits.jobs)
        self._default = default
        self._listener = listener
        self._counted_s = time.monotonic()
        self.refused = 0

    def choose(self, control: str) -> tuple[Mechanism, str]:
        """The mechanism and the congestion control of a job that asks for this control.

        Raises:
            UsageError: there is no congestion control of that name.
            NotAvailableError: it is one of MLTCP's, and is not loaded.
        """
        if control == DEFAULT_CONTROL:
            return self._default, self._default.default_control
        for mechanism in self.mechanisms:
            if mechanism.accepts(control):
                return mechanism, control
        allowed = ", ".join(dict.fromkeys([DEFAULT_CONTROL, NO_CONTROL, *available()]))
        if control in CONTROLS:
            raise NotAvailableError(
                f"control: {control} is not loaded on this host, expected one of {allowed}"
            )
        raise UsageError(f"control: expected one of {allowed}, got {control!r}")

    # -- a job's life ------------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """Start a new job.

        Raises:
            MltcpError: the host cannot control another one.
        """
        try:
            job.mechanism.add_job(job)
        except MltcpError as error:
            self.refused += 1
            _log.warning("%s is refused: %s", job, error, extra=of_user(job.user))
            raise
        self.jobs.add(job)
        _log.info(
            "%s begins, %s, because a process has registered it",
            job,
            job.mechanism.describe(job),
            extra=of_user(job.user),
        )

    def end(self, job: Job, why: str) -> None:
        """End a job; its processes, if any are left, run on without the daemon."""
        self.attachments.end(job)
        self.cgroups.end(job)
        self.stand_aside(job, "")
        job.mechanism.remove_job(job)
        self.jobs.remove(job)
        _log.info("%s ends after %d iterations: %s", job, job.times.count, why, extra=of_user(job.user))

    def release(self, cgroup: RegisteredCgroup, why: str) -> None:
        """End the registration of a cgroup, and the job if that was its last member."""
        self.cgroups.detach(cgroup)
        job = self.jobs.leave(cgroup)
        if job is not None and not job.members:
            self.end(job, why)

    def change(self, job: Job, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        job.aggressiveness = aggressiveness
        job.mechanism.change_job(job)

    def stand_aside(self, job: Job, why: str) -> None:
        """Let a job stand aside for a reason, or no more where that is empty; one under no law of ours never does."""
        why = "" if job.mechanism.name == UNCONTROLLED else why
        begins_or_ends, job.aside = bool(why) != bool(job.aside), why
        if begins_or_ends:
            job.mechanism.change_job(job)
            _log.info("%s: %s", job, f"stands aside: {why}" if why else "stands aside no more")

    # -- time --------------------------------------------------------------------------------------------------------

    def poll(self, mechanism: Mechanism) -> None:
        """Run one period of a mechanism, and report the iterations that have finished."""
        for job, finished in mechanism.poll():
            duration_s = job.times.seen(finished)
            if duration_s is not None:
                # The duration is that of the iteration before, which lasted until this one began.
                self.report(job, max(0, finished.number - 1), duration_s, finished.sent_bytes)

    def count(self) -> Iterator[None]:
        """Once a second: bring the counters of all jobs up to date; yields where requests may be handled meanwhile."""
        now_s = time.monotonic()
        elapsed_s, self._counted_s = max(1e-3, now_s - self._counted_s), now_s
        for mechanism in self.mechanisms:
            yield from mechanism.maintain() or ()
            yield
        for job in self.jobs:
            if job not in self.jobs:
                continue  # it has ended meanwhile
            before = job.acked_bytes
            yield from job.mechanism.update_counters(job) or ()
            job.bytes_per_s = (job.acked_bytes - before) / elapsed_s
            yield
        for cgroup in self.cgroups.over():
            self.release(cgroup, f"the last process in cgroup {cgroup.name} has ended")
        self.attachments.remove_empty_cgroups()

    def report(self, job: Job, number: int, duration_s: float, sent_bytes: int) -> None:
        """Pass a finished iteration to the listener."""
        self._listener(job, {"number": number, "duration_s": round(duration_s, 6), "sent_bytes": sent_bytes})

    def close(self) -> None:
        """Close all mechanisms; the journal undoes the rest."""
        for job in self.jobs:
            self.stand_aside(job, "")
        for mechanism in self.mechanisms:
            mechanism.close()
