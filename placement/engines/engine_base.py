"""What both engines do alike: hold the slots of jobs, queue events for their user, and keep directories of logs."""

from __future__ import annotations

import json
import os
import queue
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Self, TypeVar
from urllib.parse import quote

from mltcp.core.errors import UsageError
from placement.engines.engine import EngineError, EngineEvent, EngineJob, HostShare, JobHandle, SlotTakenError

_LONGEST_NAME = 200

J = TypeVar("J")


class EngineBase(Generic[J]):
    """The jobs of an engine with their slots and logs, and the events that its user polls.

    Args:
        slots: the number of slots of each host.
        logs: the directory for the jobs' directories.
    """

    def __init__(self, slots: Mapping[str, int], logs: Path) -> None:
        self._logs = logs.absolute()
        self._slots = HostSlots(slots)
        self._jobs: dict[str, J] = {}
        self._starting: set[str] = set()
        self._events = EventQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the engine's resources; see :class:`placement.engines.engine.Engine`."""
        raise NotImplementedError

    def poll(self, timeout_s: float = 0.0) -> Sequence[EngineEvent]:
        """The events since the last call; see :class:`placement.engines.engine.Engine`."""
        return self._events.take(timeout_s)

    def forget(self, handle: JobHandle) -> None:
        """Remove the logs of a job that is over; see :class:`placement.engines.engine.Engine`."""
        remove_logs(self._logs, json.loads(handle.reference)["directory"])

    def _reserve(self, job: EngineJob, placement: Sequence[HostShare]) -> None:
        """Hold the slots of a job that is about to start."""
        with self._lock:
            if self._closed.is_set():
                raise EngineError(f"job {job.id}: the engine is closed")
            if job.id in self._jobs or job.id in self._starting:
                raise EngineError(f"job {job.id} is running already")
            self._slots.take(job, placement)
            self._starting.add(job.id)

    def _free(self, job_id: str) -> None:
        """Release all that a job holds that has ended or did not start; with the lock held."""
        self._starting.discard(job_id)
        self._jobs.pop(job_id, None)
        self._slots.release(job_id)

    def _running(self, job_id: str) -> J:
        if job_id not in self._jobs:
            raise EngineError(f"job {job_id} is not running")
        return self._jobs[job_id]


def file_name(job_id: str) -> str:
    """The beginning of the name of a job's directory of logs."""
    return quote(job_id, safe="")[:_LONGEST_NAME]


class HostSlots:
    """The slots of an engine's hosts, each held by at most one job. Not thread-safe.

    Args:
        slots: the number of slots of each host.
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._slots = dict(slots)
        self._holders: dict[tuple[str, int], str] = {}

    def take(self, job: EngineJob, placement: Sequence[HostShare]) -> None:
        """Assign the slots of a placement to a job, all or none.

        Raises:
            UsageError: a host or slot is unknown or listed twice, or there is not one slot per rank.
            SlotTakenError: another job holds one of the slots.
        """
        wanted = [(share.host, slot) for share in placement for slot in share.slots]
        self._check(job, placement, len(wanted))
        for host, slot in wanted:
            holder = self._holders.get((host, slot))
            if holder is not None:
                raise SlotTakenError(f"job {job.id}: slot {slot} of host {host} is taken by job {holder}")
        self._holders.update(dict.fromkeys(wanted, job.id))

    def release(self, job_id: str) -> None:
        """Free the slots of a job."""
        self._holders = {place: holder for place, holder in self._holders.items() if holder != job_id}

    def free(self, host: str) -> tuple[int, ...]:
        """The free slots of a host in ascending order."""
        return tuple(slot for slot in range(self._slots[host]) if (host, slot) not in self._holders)

    def _check(self, job: EngineJob, placement: Sequence[HostShare], count: int) -> None:
        names = [share.host for share in placement]
        for share in placement:
            where = f"job {job.id}: placement on host {share.host}"
            if share.host not in self._slots:
                raise UsageError(f"{where}: expected one of {', '.join(self._slots)}")
            if names.count(share.host) > 1:
                raise UsageError(f"{where}: expected one share per host, got {names.count(share.host)}")
            if not share.slots or len(set(share.slots)) != len(share.slots):
                raise UsageError(
                    f"{where}: slots: expected one or more distinct ones, got {list(share.slots)}"
                )
            most = self._slots[share.host]
            if not all(0 <= slot < most for slot in share.slots):
                raise UsageError(f"{where}: slots: expected 0 to {most - 1}, got {list(share.slots)}")
        if count != job.ranks:
            raise UsageError(
                f"job {job.id}: placement: expected one slot per rank, got {count} slots for {job.ranks} ranks"
            )


# -- events -------------------------------------------------------------------------------------


class EventQueue:
    """Events in the order in which any threads put them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()

    def put(self, event: EngineEvent) -> None:
        """Add an event."""
        self._queue.put(event)

    def take(self, timeout_s: float) -> Sequence[EngineEvent]:
        """All events since the last call; waits up to `timeout_s` for the first one."""
        events: list[EngineEvent] = []
        with suppress(queue.Empty):
            events.append(self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait())
            while True:
                events.append(self._queue.get_nowait())
        return events


# -- logs ---------------------------------------------------------------------------------------


def remove_logs(logs: Path, directory: str | None) -> None:
    """Remove the logs of a job that is over, those of its earlier runs too.

    Args:
        logs: the directory of all jobs.
        directory: of the job's last run; one that is not directly in `logs`, or None, is left alone.

    Raises:
        OSError: a directory cannot be removed.
    """
    if directory is None or Path(directory).parent != logs:
        return
    name, _, number = Path(directory).name.rpartition("-")
    if not (name and number.isdecimal() and len(number) <= 9):
        return
    with suppress(FileNotFoundError):
        within = os.open(logs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By descriptors, so that nobody can lead this elsewhere by a symbolic link.
            for run in range(int(number), -1, -1):
                if not _remove(f"{name}-{run}", within):
                    break
        finally:
            os.close(within)


def _remove(name: str, within: int) -> bool:
    """Remove a directory tree; returns whether there may be an earlier one."""
    try:
        shutil.rmtree(name, dir_fd=within)
    except FileNotFoundError:
        return False
    return True
