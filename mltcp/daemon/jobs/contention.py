"""Which jobs of this host send at the same time on the same link, so that a slowed job can be told who slows it down.

Ten times a second it is asked which jobs have data in flight. What happens behind the host's own links is not seen.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from heapq import nlargest
from typing import TypeVar

from mltcp.daemon.client.status import Contender
from mltcp.daemon.jobs.job import Job
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.pacing import netlink

Key = TypeVar("Key")

SAMPLE_S = 0.1
SLOWED = 1.1
"""A job is slowed down if its typical iteration takes longer than its best one by more than this factor."""

COINCIDES = 0.05
"""Jobs are not named that send for less than this fraction of the time for which a slowed job sends."""

MOST_NAMED = 3
MOST_SAMPLED = 32
"""The number of jobs of a link that are looked at, those that send most."""

_FIND_EVERY = 10
_MEMORY = 200
"""Counts are halved after so many samples, so that old ones fade."""


_GETADDR, _IFA_ADDRESS, _IFA_LOCAL = 22, 1, 2
_ADDRESS = struct.Struct("=BBBBI")


class LinkContention:
    """Counts how often jobs that share a link send, alone and together.

    Args:
        jobs: of this host.
    """

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs
        self._links: dict[str, list[Job]] = {}
        self._interfaces: Mapping[str, str] = {}
        self._sent: Counter[int] = Counter()
        self._together: Counter[tuple[int, int]] = Counter()
        self._samples = 0

    def _find_links(self) -> None:
        """Find which jobs have connections on the same link."""
        present = {job.number for job in self._jobs}
        self._sent = Counter({number: self._sent[number] for number in present & self._sent.keys()})
        self._together = Counter(
            {pair: count for pair, count in self._together.items() if present.issuperset(pair)}
        )
        found: dict[str, list[Job]] = {}
        for job in self._jobs:
            for link in {self._link(address) for address in job.addresses}:
                found.setdefault(link, []).append(job)
        self._links = {
            link: nlargest(MOST_SAMPLED, jobs, key=lambda job: job.bytes_per_s)
            for link, jobs in found.items()
            if len(jobs) > 1
        }

    def _link(self, address: str) -> str:
        """The interface that has an address; the address itself where that is in another network namespace."""
        if address not in self._interfaces:
            self._interfaces = {**self._interfaces, address: address, **_interfaces()}
        return self._interfaces[address]

    def sample(self) -> None:
        """Count who sends now."""
        if self._samples % _FIND_EVERY == 0:
            self._find_links()
        self._samples += 1
        jobs = {job.number: job for shared in self._links.values() for job in shared if job in self._jobs}
        sending = {number for number, job in jobs.items() if job.mechanism.is_sending(job)}
        self._sent.update(sending)
        pairs = {
            (one.number, other.number)
            for shared in self._links.values()
            for one in shared
            if one.number in sending
            for other in shared
            if other.number in sending and other is not one
        }
        self._together.update(pairs)
        if self._samples % _MEMORY == 0:
            self._sent = _halved(self._sent)
            self._together = _halved(self._together)

    def slowed_by(self, job: Job) -> tuple[Contender, ...]:
        """The jobs that send with a slowed one, those first that do so most; none: it is not slowed down."""
        slowdown = job.times.slowdown
        if slowdown is None or slowdown <= SLOWED:
            return ()
        found = [
            Contender(other.number, link, round(share, 3))
            for link, jobs in self._links.items()
            if job in jobs
            for other in jobs
            if (share := self._share(job, other)) > COINCIDES
        ]
        return tuple(nlargest(MOST_NAMED, found, key=lambda each: each.share))

    def _share(self, job: Job, other: Job) -> float:
        return self._together[job.number, other.number] / max(1, self._sent[job.number])


def _interfaces() -> dict[str, str]:
    """The interface of each address of this network namespace; source: rtnetlink(7)."""
    found = {}
    _, messages = netlink.ask(_GETADDR, netlink.DUMP, bytes(_ADDRESS.size))
    for message in messages:
        family, _, _, _, index = _ADDRESS.unpack_from(message)
        # Of a point-to-point link IFA_ADDRESS, which comes first, is the other end's.
        for number, at, to in netlink.attributes(message, _ADDRESS.size, len(message)):
            if number in (_IFA_ADDRESS, _IFA_LOCAL):
                address = socket.inet_ntop(family, message[at:to])
                with suppress(OSError):  # the interface has gone meanwhile
                    found[address] = socket.if_indextoname(index)
    return found


def _halved(counts: Counter[Key]) -> Counter[Key]:
    return Counter({key: count // 2 for key, count in counts.items() if count > 1})
