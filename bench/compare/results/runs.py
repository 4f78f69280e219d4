"""The runs of a comparison as they were measured, with the facts and counters of real hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltcp.core.errors import MltcpError


@dataclass(frozen=True)
class HostFacts:
    """A host, as its agent found it.

    Attributes:
        name: as in the hosts file.
        address, interface: of its ranks.
        system: the host name, by uname(2).
        kernel: its release.
        machine: the architecture.
        processors: the number of processors that are online.
        driver: of the interface; None: the driver does not tell.
        mtu: of the interface, in bytes.
        speed_bps: of the interface; None: the driver does not tell.
        gpus: the CUDA identifiers that the hosts file gives it.
        sets_control_by: ``cgroup`` where the agent runs as root, else ``socket``.
        clock_offset_s: the host's CLOCK_REALTIME less that of the launcher.
        round_trip_s: the shortest round trip to its agent, which bounds the error of clock offsets.
    """

    name: str
    address: str
    interface: str
    system: str
    kernel: str
    machine: str
    processors: int
    driver: str | None
    mtu: int
    speed_bps: int | None
    gpus: tuple[str, ...] = ()
    sets_control_by: str = "cgroup"
    clock_offset_s: float = 0.0
    round_trip_s: float = 0.0


@dataclass(frozen=True)
class HostUse:
    """The counters of one host during a run, and its load.

    Attributes:
        host: its name.
        sent_bytes, received_bytes: of the interface.
        drops: packets that the interface dropped, in both directions.
        ce_packets: packets that arrived with an ECN mark, on all interfaces.
        retransmits: segments that TCP retransmitted, of all programs.
        other_load: the share of all processors' time that other programs used.
    """

    host: str
    sent_bytes: int
    received_bytes: int
    drops: int
    ce_packets: int
    retransmits: int
    other_load: float


ISOLATED = "isolated"
FAIR = "fair"

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class JobRun:
    """One job in one repeat of one approach; times in seconds from the start of the run.

    Attributes:
        job: its name.
        control: the congestion control of its connections.
        iteration_s: the duration of each iteration, in order.
        began_s: the start of each iteration.
        arrival_s: when the job was submitted.
        ended_s: the end of its last iteration.
        marks: packets of the job that arrived with an ECN mark.
        retransmits: segments that the job retransmitted.
        servers: the server of each worker, on labs with servers.
        losses: of a training, one an iteration.
        parameters_sha256: a checksum of what a training has learned; None for a replay.
        ideal_s: an iteration's time alone if links and hosts were ideal; None: not known.
    """

    job: str
    control: str
    iteration_s: tuple[float, ...]
    began_s: tuple[float, ...]
    arrival_s: float
    ended_s: float
    marks: int
    retransmits: int
    servers: tuple[str, ...] = ()
    losses: tuple[float, ...] = ()
    parameters_sha256: str | None = None
    ideal_s: float | None = None

    def __post_init__(self) -> None:
        if not self.iteration_s or len(self.iteration_s) != len(self.began_s):
            raise MltcpError(
                f"job {self.job} under {self.control}: expected a start and a duration for each of 1 or more "
                f"iterations, got {len(self.began_s)} and {len(self.iteration_s)}"
            )
        if not all(0 < time_s < math.inf for time_s in self.iteration_s):
            raise MltcpError(
                f"job {self.job} under {self.control}: iteration times must be positive and finite"
            )

    @property
    def jct_s(self) -> float:
        """The job completion time: from the job's arrival to its end."""
        return self.ended_s - self.arrival_s


@dataclass(frozen=True)
class LinkExcerpt:
    """The use of a link during a part of a run: the bytes of each job in consecutive bins."""

    link: str
    rate_bps: int
    from_s: float
    bin_s: float
    job_bytes: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class LinkTotals:
    """Counters and utilization of the bottleneck in one run.

    Attributes:
        retransmits: segments that any job retransmitted.
        ecn_marks: packets marked at the bottleneck, in both directions.
        utilization: share of the link's rate that was used while all jobs ran, from 0 to 1.
        sole_utilization: that share while exactly one job was sending; None if no job sent alone for long.
    """

    retransmits: int
    ecn_marks: int
    utilization: float
    sole_utilization: float | None


@dataclass(frozen=True)
class Shift:
    """A time shift: the job, the delay, and when it was applied (seconds from the start of the run)."""

    job: str
    at_s: float
    delay_s: float


@dataclass(frozen=True)
class ApproachRun:
    """One repeat of one approach on one set of jobs.

    Attributes:
        approach: its name.
        repeat: counted from 0.
        jobs: the jobs of the set.
        decisions_s: the duration of each decision of a scheduler, a placement or Cassini.
        drops: packets dropped at a full queue.
        link_use: excerpts of the bottleneck's use, from the start and from the end of the run.
        shifts: the time shifts that were applied.
        link: totals of the bottleneck; None if the jobs share no single link.
        other_load: share of all processors' time that other programs used during the run; None: not measured. On real
            hosts: of the busiest one.
        hosts: the counters of real hosts, for each group of jobs that ran side by side.
    """

    approach: str
    repeat: int
    jobs: tuple[JobRun, ...]
    decisions_s: tuple[float, ...] = ()
    drops: int = 0
    link_use: tuple[LinkExcerpt, ...] = ()
    shifts: tuple[Shift, ...] = ()
    link: LinkTotals | None = None
    other_load: float | None = None
    hosts: tuple[HostUse, ...] = ()

    def __post_init__(self) -> None:
        names = [job.job for job in self.jobs]
        if not names or len(set(names)) != len(names):
            raise MltcpError(
                f"policy {self.approach}: jobs must have names of their own, not {', '.join(names) or 'none'}"
            )

    def job(self, name: str) -> JobRun | None:
        """The job of that name, or None."""
        return next((job for job in self.jobs if job.job == name), None)


@dataclass(frozen=True)
class Change:
    """A change of a job's compute time: from `iteration` on it is multiplied by `factor`."""

    job: str
    iteration: int
    factor: float


@dataclass(frozen=True)
class Measured:
    """A set of jobs and its runs.

    Attributes:
        name: the name of the set.
        setting: the link or cluster, the scale, and the other conditions of the measurement.
        runs: by repeat, then in the order of the approaches.
        score: the compatibility score of all jobs on one link (Table 4.1); None if they share no single link.
        change: a change of a job's compute time during the runs.
        hosts: the facts of real hosts; empty in a lab.
    """

    name: str
    setting: Mapping[str, Scalar]
    runs: tuple[ApproachRun, ...]
    score: float | None = None
    change: Change | None = None
    hosts: tuple[HostFacts, ...] = ()
