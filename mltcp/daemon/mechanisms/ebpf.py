"""Control by eBPF congestion controls: each flow's window is scaled by F(bytes_ratio) of its job, in the kernel."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

from mltcp.control.link_use import SendReading
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.daemon.jobs.job import PAUSE_FLOWS, ControlState, FinishedIteration, Job
from mltcp.daemon.mechanisms.flow_counters import KernelFlowCounters
from mltcp.daemon.mechanisms.job_map import JobMap
from mltcp.daemon.mechanisms.outside_changes import CONTROL, FlowSettingsWatch, OutsideChanges, being_set
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, usual_controls
from mltcp.ebpf.job_entries import MOST_JOBS, TooManyJobsError
from mltcp.ebpf.jobs import SocketSettings
from mltcp.ebpf.layout import FlowCounts
from mltcp.pacing.tcp_info import TCP_ESTABLISHED

POLL_S = 0.1


class EbpfMechanism:
    """Jobs under the loaded eBPF congestion controls. A job gets its map entry with its first flow."""

    name = "kernel"
    poll_period_s: float | None = POLL_S

    def __init__(self, job_map: JobMap, default_control: str, changes: OutsideChanges) -> None:
        self.default_control = default_control
        self._map = job_map
        self._watch = FlowSettingsWatch(changes)
        self._counts: Mapping[int, Sequence[FlowCounts]] = {}
        self._counters: dict[int, KernelFlowCounters] = {}
        self._expected: dict[int, frozenset[int]] = {}
        self._entries: dict[int, int] = {}
        self._jobs: dict[int, Job] = {}
        self._local: dict[int, str] = {}

    def accepts(self, control: str) -> bool:
        """Whether this is a loaded control whose flows belong to jobs."""
        return self._map.takes(control)

    def describe(self, job: Job) -> str:
        """The control of a job in words."""
        return f"under {job.control}"

    @property
    def entries(self) -> int:
        """The number of entries in the kernel's map."""
        return len(self._map)

    def add_job(self, job: Job) -> None:
        """Check that there is space: the entry is added with the first flow, which may already have one."""
        if self.entries >= MOST_JOBS:
            raise TooManyJobsError(f"this host already has {MOST_JOBS} jobs in the kernel, the limit")

    def remove_job(self, job: Job) -> None:
        """Remove the job's map entry, or leave it to the flows that are still open."""
        self._counters.pop(job.number, None)
        self._watch.forget(job)
        entry = self._entries.pop(job.number, None)
        if entry is not None:
            del self._jobs[entry]
            self._map.leave(entry)

    def change_job(self, job: Job) -> None:
        """Write the job's F into its map entry, if it has one."""
        entry = self._entries.get(job.number)
        if entry is not None:
            self._map.change(entry, job.law, classed=not job.aside)

    def flow_settings(self, job: Job, flow: FoundFlow) -> FlowSettings:
        """The map entry and the congestion control; an entry left by a former daemon is taken over with its flow."""
        # One that a job has belongs to that job, whoever holds one of its flows too.
        is_free = job.number not in self._entries and flow.entry not in self._jobs
        if is_free and self._map.inherit(flow.entry, job.name, job.law):
            self._keep_entry(job, flow.entry)
        # One that was of a job and has another control now was given it by another program, which is not fought.
        taken = flow.entry and flow.control not in MLTCP_CONTROLS
        return FlowSettings(flow.position, "" if taken else job.control, entry=self._entry(job))

    def add_flow(self, job: Job, flow: FoundFlow) -> None:
        """Count the flow as open until the kernel's counts are read."""
        self._counters_of(job).passed(flow.key)

    def socket_settings(self, job: Job) -> SocketSettings:
        """The map entry and the congestion control."""
        return SocketSettings(self._entry(job), job.control)

    def mark(self, job: Job) -> int:
        """No mark: the kernel finds the job through the socket."""
        return 0

    def poll(self) -> list[tuple[Job, FinishedIteration]]:
        """The iterations in the ring buffer."""
        return [
            (
                self._jobs[record.job],
                FinishedIteration(record.iteration, record.start_ns, record.bytes, record.total_bytes),
            )
            for record in self._map.records()
            if record.job in self._jobs
        ]

    def maintain(self) -> Iterator[None]:
        """Read what is counted of all flows, and remove the entries of jobs that have ended, with their last flows."""
        ended, jobs = self._map.ended, self._jobs.values()
        settled = {entry: job for entry, job in self._jobs.items() if not being_set(jobs, job)}
        self._expected = {number: counters.before_reading() for number, counters in self._counters.items()}
        counts: dict[int, list[FlowCounts]] = {}
        for number, each in enumerate(self._map.flow_counts()):
            counts.setdefault(each.job, []).append(each)
            if number % PAUSE_FLOWS == PAUSE_FLOWS - 1:
                yield
        self._counts = counts
        self._find_addresses()
        self._map.remove_ended(ended, counts)
        self._map.set_class_bounds()
        yield from self._notice_controls(settled)

    def _find_addresses(self) -> None:
        """Find the local addresses of flows that were not passed, of which the counts have none, if there are new ones.

        Only where there are several jobs, one of which might slow down another one.
        """
        cookies = {each.cookie for entry in self._jobs for each in self._counts.get(entry, ())}
        if len(self._jobs) > 1 and not cookies <= self._local.keys():
            self._local = {
                flow.cookie: flow.local.rpartition(":")[0].strip("[]") for flow in self._map.flows()
            }
        for entry, job in self._jobs.items():
            known = (self._local.get(each.cookie) for each in self._counts.get(entry, ()))
            job.cgroup_addresses = frozenset(address for address in known if address)

    def _notice_controls(self, settled: Mapping[int, Job]) -> Iterator[None]:
        """Notice the flows whose congestion control is not what it was when they were last looked at.

        Those of jobs that were `settled` when the counts were read: a flow is between two controls for a moment while
        it is made one of a job.
        """
        differ = False
        for entry, job in settled.items():
            differ |= yield from self._differs(job, self._counts.get(entry, ()))
        if not differ:
            return
        # Once more and in full.
        jobs = self._jobs
        settled = {entry: job for entry, job in jobs.items() if not being_set(jobs.values(), job)}
        for number, flow in enumerate(self._map.flows()):
            known = settled.get(flow.job)
            if known is not None and self._jobs.get(flow.job) is known and flow.state == TCP_ESTABLISHED:
                usual = flow.control in usual_controls(known.control)
                wanted, now = {CONTROL: flow.control if usual else known.control}, {CONTROL: flow.control}
                self._watch.see(known, flow.cookie, f"{flow.local} > {flow.remote}", wanted, now)
            if number % PAUSE_FLOWS == PAUSE_FLOWS - 1:
                yield

    def _differs(self, job: Job, counts: Sequence[FlowCounts]) -> Generator[None, None, bool]:
        """Whether a flow of the job has another control than when it was last looked at."""
        if self._watch.changed(job):
            self._watch.keep(job, {each.cookie for each in counts})
        changed, usual = self._watch.changed(job), {each.encode() for each in usual_controls(job.control)}
        for number, each in enumerate(counts):
            seen = changed.get(each.cookie)
            if each.control not in (usual if seen is None else (seen[CONTROL].encode(),)):
                return True
            if number % PAUSE_FLOWS == PAUSE_FLOWS - 1:
                yield
        return False

    def update_counters(self, job: Job) -> Iterator[None]:
        """Take what was read of the job's flows."""
        entry = self._entries.get(job.number)
        counts = () if entry is None else self._counts.get(entry, ())
        return self._counters_of(job).update(job, counts, self._expected.get(job.number, frozenset()))

    def flow_count(self, job: Job) -> int:
        """The number of its open connections, those of its cgroup included."""
        return self._counters_of(job).flow_count()

    def _counters_of(self, job: Job) -> KernelFlowCounters:
        return self._counters.setdefault(job.number, KernelFlowCounters())

    def state(self, job: Job) -> ControlState:
        """The state in the job's map entry, where the kernel recognises iterations."""
        entry = self._entries.get(job.number)
        now = None if entry is None else self._map.job(entry)
        if now is None:
            return ControlState(total_bytes=job.total_bytes, gap_s=job.gap_s)
        tracker = now.tracker
        known = tracker.recognised
        return ControlState(
            factor=round(now.aggressiveness(tracker.burst_ratio), 4) if known else 1.0,
            bytes_ratio=round(tracker.bytes_ratio, 4) if known else 0.0,
            total_bytes=tracker.total_bytes,
            gap_s=tracker.gap_ns / 1e9,
        )

    def reading(self, job: Job) -> SendReading:
        """As the kernel has counted over all flows of the job."""
        entry = self._entries.get(job.number)
        now = None if entry is None else self._map.job(entry)
        return SendReading(False, 0) if now is None else SendReading(now.sending > 0, now.tracker.seen_bytes)

    def close(self) -> None:
        """Close the maps; the congestion controls stay loaded."""
        self._map.close()

    def _entry(self, job: Job) -> int:
        """The number of the job's map entry, which is made when it is first needed."""
        former = job.former_entry
        if (
            job.number not in self._entries
            and former not in self._jobs
            and self._map.inherit(former, job.name, job.law)
        ):
            self._keep_entry(job, former)
        if job.number not in self._entries:
            self._keep_entry(job, self._map.enter(job.name, job.law, job.total_bytes, job.gap_ns))
        return self._entries[job.number]

    def _keep_entry(self, job: Job, entry: int) -> None:
        self._entries[job.number] = entry
        self._jobs[entry] = job
