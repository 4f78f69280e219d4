"""The daemon's access to the maps of the eBPF congestion controls: job entries, flow tags and iteration records."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.ebpf.congestion_controls import Controls, is_alive
from mltcp.ebpf.jobs import enter_job, remove_stale
from mltcp.ebpf.layout import KernelJob, Record, Tracker
from mltcp.ebpf.libbpf import RingBuffer

_KEY = struct.Struct("=I")
_EXISTING = 2


class JobMap:
    """The maps of the loaded controls, open while the daemon runs.

    Raises:
        MltcpError: no control is loaded, or those loaded are of another version.
    """

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._records: list[Record] = []
        remove_stale(controls)
        self._jobs = controls.shared_map("mltcp_jobs")
        self._flows = controls.shared_map("mltcp_flows")
        self._check_versions()
        with controls.shared_map("mltcp_records") as records:
            self._ring = RingBuffer(records, lambda raw: self._records.append(Record.unpack(raw)))

    def _check_versions(self) -> None:
        if self._jobs.value_size != KernelJob.SIZE:
            raise MltcpError(
                "the loaded controls are of another version of this program: mltcp unload, then mltcp load"
            )

    def close(self) -> None:
        """Close the maps; their entries stay."""
        self._ring.close()
        self._flows.close()
        self._jobs.close()

    def takes(self, control: str) -> bool:
        """Whether flows under this control belong to jobs."""
        return self._controls.takes_jobs(control)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def enter(self, name: str, aggressiveness: Aggressiveness, total_bytes: int, gap_ns: int) -> int:
        """Add an entry for a job; returns its number."""
        tracker = Tracker.given_values(total_bytes or None, gap_ns or None)
        return enter_job(KernelJob(name, aggressiveness, tracker=tracker), self._controls)

    def inherit(self, number: int, name: str) -> bool:
        """Take over the entry to which a former daemon has assigned a flow; False if it is not one of this name."""
        job = self.job(number) if number else None
        if job is None or job.name != name or (job.owner and is_alive(job.owner)):
            return False
        self._replace(number, owner=os.getpid())
        return True

    def job(self, number: int) -> KernelJob | None:
        """The entry of a job now."""
        value = self._jobs.lookup(_KEY.pack(number))
        return None if value is None else KernelJob.unpack(value)

    def change(self, number: int, aggressiveness: Aggressiveness) -> None:
        """Give a job another F, from the next acknowledgement on."""
        self._replace(number, aggressiveness=aggressiveness, action=None)

    def _replace(self, number: int, **changes: Any) -> None:
        """Change the fields of an entry that user space owns.

        The kernel updates its fields meanwhile: an iteration that it finishes between the reading and the writing is
        lost, which costs the job one iteration with a wrong count.
        """
        job = self.job(number)
        if job is not None:
            self._jobs.update(_KEY.pack(number), replace(job, **changes).pack(), _EXISTING)

    def leave(self, number: int) -> None:
        """Remove the entry of an ended job. If it still has flows, the next daemon or `mltcp run` removes it."""
        job = self.job(number)
        if job is None:
            return
        if job.flows:
            # No owner: any process that finds it without flows may remove it.
            self._replace(number, owner=0)
        else:
            self._jobs.delete(_KEY.pack(number))

    @property
    def flows_descriptor(self) -> int:
        """The descriptor of the map of flows, open as long as this is."""
        return self._flows.fd

    # -- records -----------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """The records of the iterations that have finished since the last call."""
        self._ring.consume()
        taken = list(self._records)
        self._records.clear()
        return taken
