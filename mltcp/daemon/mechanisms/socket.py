"""No control by the daemon: flows get the congestion control that their job asks for, and are only counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from mltcp.control.link_use import SendReading
from mltcp.core.user_lines import of_user
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.daemon.jobs.job import NO_CONTROL, UNCONTROLLED, ControlState, FinishedIteration, Job
from mltcp.daemon.mechanisms.flow_counters import FlowCounters
from mltcp.ebpf.congestion_controls import available
from mltcp.ebpf.jobs import SocketSettings

_log = logging.getLogger("mltcp.daemon")


MOST_LOOKED_AT = 16
"""The number of flows by which it is seen how much a job sends: each is a request to the kernel."""


class SocketMechanism:
    """Jobs whose sockets run under a congestion control of the kernel's own, or keep theirs."""

    name = UNCONTROLLED
    default_control = NO_CONTROL
    poll_period_s: float | None = None

    def __init__(self) -> None:
        self._counters = FlowCounters()

    def accepts(self, control: str) -> bool:
        """Whether this is a congestion control of the kernel, or none in particular."""
        return control == NO_CONTROL or control in available()

    def describe(self, job: Job) -> str:
        """The control of a job in words."""
        return "only watched"

    def add_job(self, job: Job) -> None:
        """Nothing has to be set up."""

    def remove_job(self, job: Job) -> None:
        """Nothing has to be undone."""

    def change_job(self, job: Job) -> None:
        """F has no effect here."""

    def flow_settings(self, job: Job, flow: FoundFlow) -> FlowSettings:
        """The congestion control, if the job asks for one."""
        return FlowSettings(flow.position, "" if job.control == NO_CONTROL else job.control)

    def add_flow(self, job: Job, flow: FoundFlow) -> None:
        """Nothing else has to be done, or can be for a connection of another network namespace."""
        if not flow.here:
            _log.warning(
                "%s: %s:%d is not counted, because it is in another network namespace",
                job,
                *flow.key.remote,
                extra=of_user(job.user),
            )

    def socket_settings(self, job: Job) -> SocketSettings:
        """The congestion control, if the job asks for one."""
        return SocketSettings(0, "" if job.control == NO_CONTROL else job.control)

    def mark(self, job: Job) -> int:
        """No mark: nothing is classified."""
        return 0

    def poll(self) -> list[tuple[Job, FinishedIteration]]:
        """No iterations: nothing observes them here."""
        return []

    def maintain(self) -> None:
        """Nothing on the host belongs to it."""

    def update_counters(self, job: Job) -> Iterator[None]:
        """Read the counters through sock_diag."""
        return self._counters.update(job)

    def flow_count(self, job: Job) -> int:
        """The number of connections that were passed and are open."""
        return len(job.flows)

    def state(self, job: Job) -> ControlState:
        """F is 1, and the iterations are not recognised."""
        return ControlState(total_bytes=job.total_bytes, gap_s=job.gap_s)

    def reading(self, job: Job) -> SendReading:
        """Of its first flows."""
        return self._counters.reading(list(islice(job.flows, MOST_LOOKED_AT)))

    def close(self) -> None:
        """Close the netlink socket."""
        self._counters.close()
