"""The daemon's access to the maps of the eBPF congestion controls: job entries, flow tags and iteration records."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.owner import Owner
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.flow_watch import FlowWatch
from mltcp.ebpf.jobs import remove_stale
from mltcp.ebpf.layout import Action, Flow, FlowCounts, KernelJob, Record, Tracker
from mltcp.ebpf.libbpf import RingBuffer


class JobMap:
    """The maps of the loaded controls, open while the daemon runs.

    Args:
        controls: that are loaded.
        classes: traffic classes that the packets of jobs may say, 2 to 8; 0: none.
        fair: whether the connections of a job grow together like one.

    Raises:
        MltcpError: no control is loaded, or those loaded are of another version.
    """

    def __init__(self, controls: Controls, classes: int = 0, fair: bool = False) -> None:
        self._controls, self._classes, self._fair = controls, classes, fair
        self._records: list[Record] = []
        remove_stale(controls)
        self._entries = controls.job_entries()
        self._flows = controls.shared_map("mltcp_flows")
        self._tags = controls.shared_map("mltcp_tags")
        self._watch = FlowWatch(self._flows, self._tags)
        self._ended = {number for number, job in self._entries if not job.is_owned}
        with controls.shared_map("mltcp_records") as records:
            self._ring = RingBuffer(records, lambda raw: self._records.append(Record.unpack(raw)))

    def close(self) -> None:
        """Close the maps; their entries stay."""
        self._ring.close()
        self._watch.close()
        self._flows.close()
        self._tags.close()
        self._entries.close()

    def takes(self, control: str) -> bool:
        """Whether flows under this control belong to jobs."""
        return self._controls.takes_jobs(control)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of entries, those of ended jobs and of jobs that run without the daemon included."""
        return len(self._entries)

    def enter(self, name: str, aggressiveness: Aggressiveness, total_bytes: int, gap_ns: int) -> int:
        """Add an entry for a job; returns its number.

        Raises:
            TooManyJobsError: there is no space for another one.
        """
        tracker = Tracker.given_values(total_bytes or None, gap_ns or None)
        action = self._action(aggressiveness)
        return self._entries.add(KernelJob(name, aggressiveness, action, tracker, owner=Owner.current()))

    def inherit(self, number: int, name: str, aggressiveness: Aggressiveness) -> bool:
        """Take over the entry to which a former daemon has assigned a flow; False if it is not one of this name.

        F is that of the registration again: a daemon that was killed may have let the job stand aside.
        """
        job = self.job(number) if number else None
        if job is None or job.name != name or job.is_owned:
            return False
        self.change(number, aggressiveness)
        self._entries.change(number, owner=Owner.current())
        self._ended.discard(number)
        return True

    def job(self, number: int) -> KernelJob | None:
        """The entry of a job now."""
        return self._entries.get(number)

    def change(self, number: int, aggressiveness: Aggressiveness, classed: bool = True) -> None:
        """Give a job another F, and classes or none, from when a flow of it next begins to send."""
        action = self._action(aggressiveness, classed)
        self._entries.change(number, aggressiveness=aggressiveness, action=action)

    def set_class_bounds(self) -> None:
        """Let the bounds of traffic classes part the jobs that send now; nothing where there are no classes."""
        if self._classes:
            self._entries.set_class_bounds()

    def _action(self, aggressiveness: Aggressiveness, classed: bool = True) -> Action:
        classes = self._classes if classed else 0
        return replace(Action.of_shape(aggressiveness.shape), classes=classes, fair=self._fair)

    def leave(self, number: int) -> None:
        """Remove the entry of an ended job, with its last flow if it still has any."""
        if self._entries.flows(number):
            # No owner: if this daemon ends before, the next one removes it.
            self._entries.change(number, owner=None)
            self._ended.add(number)
        else:
            self._entries.remove(number)

    @property
    def ended(self) -> frozenset[int]:
        """The numbers of ended jobs that still have an entry."""
        return frozenset(self._ended)

    def remove_ended(self, ended: Iterable[int], with_flows: Container[int]) -> None:
        """Remove the entries of jobs whose last flow has been closed since they ended.

        `ended`: those that had ended before the flows were read; `with_flows`: the numbers of jobs that then had an
        open flow. The kernel's own count may be too large: now and then it does not call a program that counts
        (docs/ebpf.md).
        """
        for number in self._ended.intersection(ended):
            if number not in with_flows or not self._entries.flows(number):
                self._entries.remove(number)
                self._ended.discard(number)

    def flow_counts(self) -> Iterator[FlowCounts]:
        """The counters of the open flows in all network namespaces, as of now."""
        return self._watch.counts()

    def flows(self) -> list[Flow]:
        """The open flows, in all network namespaces, in full."""
        return self._watch.flows()

    @property
    def tags_descriptor(self) -> int:
        """The descriptor of the map of sockets' jobs, open as long as this is."""
        return self._tags.fd

    # -- records -----------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """The records of the iterations that have finished since the last call."""
        self._ring.consume()
        taken = list(self._records)
        self._records.clear()
        return taken
