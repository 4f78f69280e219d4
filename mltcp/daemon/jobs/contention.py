"""What the jobs of this host ask of each link that they share, what they take from each other, and who stands aside.

Twenty times a second, at random times, it is read which jobs have data in flight (:mod:`mltcp.control.link_use`).
Where the jobs on a link ask for much more than it has, a law can give to one only what it takes from another: they
stand aside then, which means that F is 1 and that packets say no class. What happens behind the links of this host is
not seen.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from heapq import nlargest
from operator import attrgetter

from mltcp.control.link_use import LinkAccount, LinkUse
from mltcp.daemon.client.status import OTHERS, Contender, JobLoss
from mltcp.daemon.jobs.job import Job
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.pacing import netlink

SAMPLE_S = 0.05
TIME_CONSTANT_S, TIME_CONSTANT_ITERATIONS = 20.0, 10
"""After so long a sample counts for 1/e: the longer of this time and this many iterations of the slowest job."""

KNOWN_AFTER = 0.25
"""Time constants after which a job's account is believed."""

ASIDE_ABOVE = 1.3
"""The demand of a link above which its jobs stand aside. docs/daemon.md has the measurements behind it."""

BACK_BELOW = 12 / 13
"""They come back below this part of it: five standard deviations of a measured demand lie between (docs/daemon.md)."""

MOST_NAMED = 4
MOST_SAMPLED = 16
"""The number of jobs of a link that are looked at, those that send most."""

_UPDATE_EVERY = 20

_GETADDR, _IFA_ADDRESS, _IFA_LOCAL = 22, 1, 2
_ADDRESS = struct.Struct("=BBBBI")


class LinkContention:
    """Accounts of the jobs that share links.

    Args:
        jobs: of this host.
        aside_above: the demand of a link above which its jobs stand aside; 0: never.
        clock: in seconds.
    """

    def __init__(
        self, jobs: JobTable, aside_above: float = ASIDE_ABOVE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs = jobs
        self._aside_above = aside_above
        self._clock = clock
        self._links: dict[str, list[Job]] = {}
        self._uses: dict[str, LinkUse] = {}
        self._accounts: dict[str, Mapping[int, LinkAccount]] = {}
        self._contended: set[str] = set()
        self._interfaces: Mapping[str, str] = {}
        self._samples = 0

    # -- samples -----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Read who sends now, and once a second what follows from it."""
        if self._samples % _UPDATE_EVERY == 0:
            self._find_links()
            for link, shared in self._links.items():
                self._update(link, shared)
        self._samples += 1
        jobs = {job.number: job for shared in self._links.values() for job in shared if job in self._jobs}
        now_s = self._clock()
        readings = {number: job.mechanism.reading(job) for number, job in jobs.items()}
        for link, shared in self._links.items():
            self._uses[link].sample(
                now_s, {job.number: readings[job.number] for job in shared if job.number in readings}
            )

    def _find_links(self) -> None:
        """Find which jobs have connections on the same link."""
        found: dict[str, list[Job]] = {}
        for job in self._jobs:
            for link in {self._link(address) for address in job.addresses}:
                found.setdefault(link, []).append(job)
        self._links = {
            link: nlargest(MOST_SAMPLED, jobs, key=attrgetter("bytes_per_s"))
            for link, jobs in found.items()
            if len(jobs) > 1
        }
        self._uses = {link: self._uses.get(link) or LinkUse() for link in self._links}
        self._accounts = {link: self._accounts.get(link, {}) for link in self._links}
        self._contended &= self._links.keys()

    def _link(self, address: str) -> str:
        """The interface that has an address; the address itself where that is in another network namespace."""
        if address not in self._interfaces:
            self._interfaces = {**self._interfaces, address: address, **_interfaces()}
        return self._interfaces[address]

    def _update(self, link: str, jobs: list[Job]) -> None:
        """Bring the accounts of a link up to date, and decide whether its jobs stand aside."""
        use = self._uses[link]
        use.keep({job.number for job in jobs})
        slowest_s = max((job.times.typical_s or 0.0 for job in jobs), default=0.0)
        constant_s = max(TIME_CONSTANT_S, TIME_CONSTANT_ITERATIONS * slowest_s)
        least = KNOWN_AFTER * constant_s / SAMPLE_S
        self._accounts[link] = {
            number: each for number, each in use.accounts().items() if each.samples >= least
        }
        use.fade(math.exp(-_UPDATE_EVERY * SAMPLE_S / constant_s))
        demand = self._demand(link)
        if self._aside_above and demand > self._aside_above:
            self._contended.add(link)
        elif demand < BACK_BELOW * self._aside_above:
            self._contended.discard(link)

    # -- what follows ------------------------------------------------------------------------------------------------

    def _demand(self, link: str) -> float:
        return sum(each.demand for each in self._accounts[link].values())

    def loss(self, job: Job) -> JobLoss | None:
        """What a job lost to others, where it lost most; None: it shares no link, or that is not known yet."""
        accounts = [
            (link, accounts[job.number])
            for link, accounts in self._accounts.items()
            if job.number in accounts
        ]
        if not accounts:
            return None
        link, account = max(accounts, key=lambda each: each[1].lost_in_all)
        lost_to = [Contender(number, round(part, 4)) for number, part in account.lost.items()]
        named = nlargest(MOST_NAMED, lost_to, key=attrgetter("lost"))
        rest = round(sum(each.lost for each in lost_to) - sum(each.lost for each in named), 4)
        to = tuple(named) if rest <= 0 else (*named, Contender(OTHERS, rest))
        return JobLoss(
            link,
            round(sum(each.lost for each in to), 4),
            round(account.error, 4),
            to,
            round(account.demand, 4),
            round(self._demand(link), 4),
        )

    def why_aside(self, job: Job) -> str:
        """Why a job stands aside; empty: it does not."""
        for link in sorted(self._contended):
            if job.number in self._accounts[link]:
                demand, above = self._demand(link), self._aside_above
                if demand > above:
                    return f"demand {demand:.2f} on {link} > {above:.2f}"
                return f"demand {demand:.2f} on {link}, until < {BACK_BELOW * above:.2f}"
        return ""


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
