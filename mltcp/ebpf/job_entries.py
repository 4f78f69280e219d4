"""The entries of jobs in the maps of the loaded controls: their terms, and their states."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from mltcp.control.traffic_classes import ALIKE, bounds_between
from mltcp.core.errors import NotAvailableError
from mltcp.ebpf.layout import KernelJob, Tracker
from mltcp.ebpf.libbpf import BpfError, BpfMap

MOST_JOBS = 4096
"""As in flow.bpf.h."""

_KEY = struct.Struct("=I")
_ONLY_IF_NEW, _ONLY_IF_THERE = 1, 2
_NUMBERS = (1 << 31) - 1
_SILENCES, _LEAST_SILENCE_NS = 8, 10**9


class TooManyJobsError(NotAvailableError):
    """The kernel has as many jobs as it can have."""


class JobEntries:
    """The map of jobs' terms, which only user space writes, and that of their states, which only the kernel writes.

    Args:
        terms, jobs: the maps; closed with this.
    """

    def __init__(self, terms: BpfMap, jobs: BpfMap) -> None:
        self._terms = terms
        self._jobs = jobs
        self._clock_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the maps; their entries stay."""
        self._terms.close()
        self._jobs.close()

    def __iter__(self) -> Iterator[tuple[int, KernelJob]]:
        for key in self._jobs.all_keys():
            number = int(_KEY.unpack(key)[0])
            job = self.get(number)
            if job is not None:
                yield number, job

    def __len__(self) -> int:
        return sum(1 for _ in self._jobs.all_keys())

    def get(self, number: int) -> KernelJob | None:
        """The job of this number now."""
        terms, state = (each.lookup(_KEY.pack(number)) for each in (self._terms, self._jobs))
        return None if terms is None or state is None else KernelJob.unpack(terms, state)

    def flows(self, number: int) -> int:
        """The number of open flows of a job."""
        job = self.get(number)
        return 0 if job is None else job.flows

    def add(self, job: KernelJob) -> int:
        """Add a job; returns its number, which no flow of a former job has.

        Numbers come from the clock, in milliseconds, and so are not used again for three weeks.

        Raises:
            TooManyJobsError: there is no space for another one.
        """
        self._clock_ms = max(self._clock_ms, time.time_ns() // 1_000_000)
        for _ in range(MOST_JOBS + 1):
            self._clock_ms += 1
            number = 1 + self._clock_ms % _NUMBERS
            key = _KEY.pack(number)
            try:
                self._terms.update(key, job.pack_terms(), _ONLY_IF_NEW)
                self._jobs.update(key, job.pack_state(number), _ONLY_IF_NEW)
            except BpfError as error:
                if error.errno != errno.EEXIST:
                    break
            else:
                return number
        raise TooManyJobsError(f"this host already has {MOST_JOBS} jobs in the kernel, the limit")

    def change(self, number: int, **changes: Any) -> None:
        """Change a job's terms: F, where it acts, the owner. F is in force when a flow next begins to send."""
        job = self.get(number)
        if job is not None:
            self._terms.update(_KEY.pack(number), replace(job, **changes).pack_terms(), _ONLY_IF_THERE)

    def set_class_bounds(self) -> None:
        """Give jobs that have traffic classes bounds that part those which send now, where others would be better.

        The bytes of an iteration are those that the kernel has observed on this host. A job whose iterations are
        not known, or that has been silent for several of its pauses, does not count.
        """
        classed = [(number, job) for number, job in self if job.acts.classes]
        now_ns = time.monotonic_ns()
        known = [
            job.tracker.total_bytes for _, job in classed if job.sending_s and _sends(job.tracker, now_ns)
        ]
        for number, job in classed:
            acts = replace(job.acts, class_bounds_bytes=bounds_between(known, job.acts.classes))
            if not _nearly_equal(acts.class_bounds_kib, job.acts.class_bounds_kib):
                with suppress(BpfError):  # the job may have ended meanwhile
                    self.change(number, action=acts)

    def remove(self, number: int) -> None:
        """Remove a job; flows that it still has go on, each on its own."""
        self._terms.delete(_KEY.pack(number))
        self._jobs.delete(_KEY.pack(number))


def _sends(tracker: Tracker, now_ns: int) -> bool:
    """Whether a job has not been silent for longer than between its iterations."""
    return now_ns - tracker.last_ns < max(_SILENCES * tracker.gap_ns, _LEAST_SILENCE_NS)


def _nearly_equal(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether bounds differ by so little that jobs would rather keep their classes."""
    return all(max(pair) <= ALIKE * min(pair) for pair in zip(first, second, strict=True))
