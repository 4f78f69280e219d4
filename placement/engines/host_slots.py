"""Who has which slot of which host: no slot is ever given to two jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltcp.core.errors import UsageError
from placement.engines.engine import EngineError, EngineJob, HostShare
from placement.engines.hosts import Host


class HostSlots:
    """The slots of an engine's hosts. Not safe to use from several threads: the engine sees to that."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self._holders: dict[tuple[str, int], str] = {}

    def take(self, job: EngineJob, placement: Sequence[HostShare]) -> None:
        """Give a job the slots of its placement, all or none.

        Raises:
            UsageError: an unknown host or slot, one twice, or not one slot a rank.
            EngineError: another job has one of them.
        """
        wanted = [(share.host, slot) for share in placement for slot in share.slots]
        self._check(job, placement, len(wanted))
        for host, slot in wanted:
            holder = self._holders.get((host, slot))
            if holder is not None:
                raise EngineError(f"job {job.id}: slot {slot} of host {host} is taken by job {holder}")
        self._holders.update(dict.fromkeys(wanted, job.id))

    def release(self, job_id: str) -> None:
        """Take back whatever a job has."""
        self._holders = {place: holder for place, holder in self._holders.items() if holder != job_id}

    def free(self, host: str) -> tuple[int, ...]:
        """The slots of a host that nobody has, in order."""
        return tuple(slot for slot in range(self._hosts[host].slots) if (host, slot) not in self._holders)

    def _check(self, job: EngineJob, placement: Sequence[HostShare], count: int) -> None:
        names = [share.host for share in placement]
        for share in placement:
            where = f"job {job.id}: placement on host {share.host}"
            if share.host not in self._hosts:
                raise UsageError(f"{where}: no such host: there are {', '.join(self._hosts)}")
            if names.count(share.host) > 1:
                raise UsageError(f"{where}: it is there more than once: one share a host is allowed")
            if not share.slots or len(set(share.slots)) != len(share.slots):
                raise UsageError(f"{where}: slots {list(share.slots)}: one or more, each once, are allowed")
            most = self._hosts[share.host].slots
            if not all(0 <= slot < most for slot in share.slots):
                raise UsageError(f"{where}: slots {list(share.slots)}: 0 to {most - 1} are allowed")
        if count != job.ranks:
            raise UsageError(
                f"job {job.id}: placement: {count} slots for {job.ranks} ranks: one a rank is needed"
            )
