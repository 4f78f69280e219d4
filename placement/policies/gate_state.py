"""The transfers of running jobs on links, as the compiled admission policies read them: of a gate, live or simulated.

As in the simulator, the bytes left of a running transfer decrease with time at the pace that Eq. 5 gives for the number
of transfers on its most crowded link. Each job has one transfer, however many of its operations are under way. `left`
is in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from placement.model.job import Contention
from placement.model.state import JOB, LINK, PLACE
from placement.policies.catalogue import (
    BY_RANK,
    GATE_NAMES,
    LIMITED,
    REMAINING_TIME,
    CommunicationPolicy,
    communication_policy,
)
from placement.policies.communication import grant, starts

_MOST = 1 << 62


def gate_policy(name: str) -> CommunicationPolicy:
    """The communication policy of this name.

    Raises:
        UsageError: the policy is unknown, or a gate cannot enforce it.
    """
    return communication_policy(str(GATE_NAMES.parse(name)))


@dataclass(slots=True)
class _Transfer:
    """The rest of a job's running transfer; `moving` once one of its operations has all of its ranks."""

    left: float
    latency_left: float
    updated_ns: int
    moving: bool = False


class GateState:
    """The transfers of jobs, which have numbers, on links, which have names.

    Args:
        policy: the admission policy.
        contention: a, b and eta, by which transfers progress and AdaDUAL decides.
        speeds: speeds of links relative to that of `contention`; 1 if not given.
    """

    def __init__(
        self,
        policy: CommunicationPolicy,
        contention: Contention,
        speeds: Mapping[str, Fraction] | None = None,
    ) -> None:
        self._policy = policy
        self._contention = contention
        self._latency_ns = float(contention.latency_ns)
        # Theorem 2 as a ratio of whole numbers: exact, and quicker than fractions.
        self._acceptance_ratio = contention.acceptance.as_integer_ratio()
        self._speeds = dict(speeds or {})
        self._links: dict[str, int] = {}
        self._on: dict[int, tuple[int, ...]] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._rebuild()
        self._compile()

    def _compile(self) -> None:
        """Compile the policy before the first job needs it."""
        self.put(0, ("",))
        self.may_start(0, 1, 0)
        if self.grants_links:
            self.granted([0])
        self.remove(0)

    # -- jobs and links ----------------------------------------------------------------------------------------------

    def put(self, job: int, links: Sequence[str]) -> None:
        """Add a job with these links, or replace its links."""
        for name in links:
            self._links.setdefault(name, len(self._links))
        self._on[job] = tuple(self._links[name] for name in links)
        self._rebuild()

    def remove(self, job: int) -> None:
        """Remove a job."""
        self._on.pop(job, None)
        self._transfers.pop(job, None)
        used = {link for links in self._on.values() for link in links}
        kept = [name for name, link in self._links.items() if link in used]
        renumbered = {self._links[name]: number for number, name in enumerate(kept)}
        self._links = {name: number for number, name in enumerate(kept)}
        self._on = {job: tuple(renumbered[link] for link in links) for job, links in self._on.items()}
        self._rebuild()

    def _rebuild(self) -> None:
        """Rebuild the records from the jobs and links."""
        count = max(self._on, default=0) + 1
        self._jobs = np.zeros(count, JOB)
        self._link_records = np.zeros(max(1, len(self._links)), LINK)
        self._link_records["first_running"] = self._link_records["first_waiting"] = -1
        self._places = np.zeros(max(1, sum(map(len, self._on.values()))), PLACE)
        # Views of single fields: access through the record takes several times as long.
        self._left = self._jobs["left"]
        self._running, self._first_running = (
            self._link_records["running"],
            self._link_records["first_running"],
        )
        self._next, self._before = self._places["next"], self._places["before"]
        self._places_of: dict[int, range] = {}
        first = 0
        for job, links in self._on.items():
            record = self._jobs[job]
            record["model"], record["first_place"], record["places"] = job, first, len(links)
            for place, link in enumerate(links, first):
                self._places[place] = (job, link, -1, -1)
            self._places_of[job] = range(first, first + len(links))
            first += len(links)
        self._acceptance = np.zeros(count, np.int64)
        alone, pace = self._contention.ns_per_byte, self._contention.pace_ns_per_byte
        self._costs = np.array([0.0] + [float(pace(each) / alone) for each in range(1, count + 2)])
        names = sorted(self._links, key=self._links.__getitem__)
        speeds = [float(self._speeds.get(name, Fraction(1))) for name in names]
        self._bytes_per_ns = [
            [0.0] + [speed / float(pace(each)) for each in range(1, count + 1)] for speed in speeds
        ]
        for job in self._transfers:
            self._push(job)

    # -- transfers ---------------------------------------------------------------------------------------------------

    def is_running(self, job: int) -> bool:
        """Whether the job has a running transfer."""
        return job in self._transfers

    def share_a_link(self, job: int, other: int) -> bool:
        """Whether two jobs have a link in common."""
        return not set(self._on[job]).isdisjoint(self._on[other])

    def alone_ns(self, job: int, nbytes: int) -> float:
        """How long a transfer of this size of the job takes by the model if no other shares its links."""
        slowest = min((self._bytes_per_ns[link][1] for link in self._on[job]), default=None)
        return self._latency_ns + (nbytes / slowest if slowest else 0.0)

    def left_bytes(self, job: int, now_ns: int) -> float:
        """The bytes left of the job's transfer, by the model."""
        self._settle(now_ns)
        return self._transfers[job].left

    @property
    def grants_links(self) -> bool:
        """Whether links are granted to jobs, and taken back between two operations (SRTF-Yield)."""
        return self._policy.rule == BY_RANK

    @property
    def ranks_by_time(self) -> bool:
        """Whether jobs are ranked by their remaining time, and not by what they have left to compute."""
        return self._policy.link_rank == REMAINING_TIME

    def granted(self, asking: Sequence[int]) -> frozenset[int]:
        """The jobs to which SRTF-Yield grants their links, of those that wait or send, in the order of rank."""
        jobs, pending = self._jobs, np.zeros(len(self._jobs), np.int64)
        pending[: len(asking)] = asking
        jobs["granted"], jobs["mark"], self._link_records["granted"] = 0, 0, -1
        jobs["rank"][pending[: len(asking)]] = np.arange(len(asking))
        jobs["mark"][pending[: len(asking)]] = 1
        # Nobody loses a grant: those before him have had theirs already.
        grant(jobs, self._link_records, self._places, pending, len(asking), np.zeros(len(jobs), np.int64))
        return frozenset(job for job in asking if jobs["granted"][job])

    def may_start(self, job: int, nbytes: int, now_ns: int) -> bool:
        """Whether the policy admits a transfer of this size of the job now.

        Of one that grants links: whether those of the job are free.
        """
        self._settle(now_ns)
        left = self._left
        for number, transfer in self._transfers.items():
            left[number] = int(transfer.left)
        left[job] = min(nbytes, _MOST)
        above, below = self._acceptance_ratio
        self._acceptance[job] = min(_MOST, nbytes * below // above)
        policy = self._policy
        rule, limit = (LIMITED, 1) if self.grants_links else (policy.rule, policy.limit)
        return bool(
            starts(
                rule, limit, self._jobs, self._link_records, self._places, self._costs,
                self._acceptance, job,
            )
        )  # fmt: skip

    def start(self, job: int, nbytes: int, now_ns: int) -> None:
        """Start the job's transfer; its bytes do not decrease before `move`."""
        self._settle(now_ns)
        self._transfers[job] = _Transfer(float(nbytes), self._latency_ns, now_ns)
        self._push(job)

    def extend(self, job: int, nbytes: int, now_ns: int) -> None:
        """Add bytes to the job's running transfer."""
        self._settle(now_ns)
        self._transfers[job].left += nbytes

    def move(self, job: int, now_ns: int) -> None:
        """Let the bytes left of the transfer decrease: one of its operations has all of its ranks."""
        self._settle(now_ns)
        self._transfers[job].moving = True

    def stop(self, job: int, now_ns: int) -> None:
        """End the job's transfer."""
        self._settle(now_ns)
        del self._transfers[job]
        for place in self._places_of[job]:
            self._unlink(place)

    def _settle(self, now_ns: int) -> None:
        for job, transfer in self._transfers.items():
            elapsed = max(0, now_ns - transfer.updated_ns)
            transfer.updated_ns = now_ns
            if transfer.moving and self._on[job]:
                waited = min(elapsed, transfer.latency_left)
                transfer.latency_left -= waited
                transfer.left = max(0.0, transfer.left - (elapsed - waited) * self._rate(job))

    def _rate(self, job: int) -> float:
        running = self._running
        return min(self._bytes_per_ns[link][running[link]] for link in self._on[job])

    # -- the lists of running transfers ------------------------------------------------------------------------------

    def _push(self, job: int) -> None:
        for place, link in zip(self._places_of[job], self._on[job], strict=True):
            first = self._first_running[link]
            self._next[place], self._before[place] = first, -1
            if first >= 0:
                self._before[first] = place
            self._first_running[link] = place
            self._running[link] += 1

    def _unlink(self, place: int) -> None:
        after, before = self._next[place], self._before[place]
        link = self._places[place]["link"]
        if after >= 0:
            self._before[after] = before
        if before >= 0:
            self._next[before] = after
        else:
            self._first_running[link] = after
        self._next[place] = self._before[place] = -1
        self._running[link] -= 1
