"""Assignment of the hosts' slots to jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltcp.core.errors import UsageError
from placement.engines.engine import EngineJob, HostShare, SlotTakenError


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
