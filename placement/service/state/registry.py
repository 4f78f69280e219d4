"""The in-memory state of the service: servers, links, jobs, and which job holds which slots and uses which links.

Every method validates before it changes anything: one that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from mltcp.core.policy_names import split_cassini
from placement.policies.slot_pool import SlotPool, SlotRequest
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import (
    ErrorCode,
    RequestError,
    check_link,
    check_name,
    check_server,
    invalid,
)
from placement.service.state.job_record import JobRecord, ResourceClass
from placement.service.state.network_tree import NetworkTree
from placement.service.state.waiting_queue import WaitingQueue


@dataclass(frozen=True)
class OutOfUse:
    """Why jobs are not placed on a server.

    Attributes:
        state: DRAINING, UNHEALTHY or REMOVED.
        reason: that was given.
    """

    state: pb.ServerState
    reason: str = ""


class Registry:
    """The state of one service; it may be accessed by the service's event loop only."""

    def __init__(self) -> None:
        self.tree = NetworkTree()
        self.servers: list[pb.Server] = []
        self.out_of_use: dict[int, OutOfUse] = {}
        self.links: list[pb.Link] = []
        self.jobs: dict[str, JobRecord] = {}
        self.unended: dict[str, JobRecord] = {}
        """Those of `jobs` that are not over: a service has ten, and remembers ten thousand that are."""
        self.waiting = WaitingQueue()
        self.gpus = SlotPool()
        self.cpu_slots = SlotPool()
        self.jobs_of: dict[str, dict[str, None]] = {}
        self.views: dict[bool, Any] = {}
        """Caches of `decisions.cluster_views`, which clusters that change empty."""
        self.next_job_number = 0
        self._numbers: dict[str, int] = {}
        self._over: list[tuple[int, int, str]] = []
        self._unended_of: dict[str, set[str]] = {}

    # ------------------------------------------------------------------------------------------------ the cluster

    def add_servers(self, servers: Sequence[pb.Server]) -> list[int]:
        """Register servers, and return the numbers of the new ones.

        Raises:
            RequestError: a server is invalid, or registered with other content.
        """
        added: dict[str, pb.Server] = {}
        for position, server in enumerate(servers):
            field = f"servers[{position}]"
            check_server(server, field)
            known = self._known_server(server.name) or added.get(server.name)
            if known is not None:
                _check_same(known, server, field)
                continue
            if server.name in self.tree.links or server.name in self.tree.switches:
                raise RequestError(
                    ErrorCode.EXISTS,
                    f"{field}.name",
                    f"expected a new name, got that of a switch: {server.name!r}",
                )
            added[server.name] = server
        for position, server in enumerate(servers):
            if server.switch in added or server.switch in self._numbers:
                raise invalid(
                    f"servers[{position}].switch", f"expected a switch, got the server {server.switch!r}"
                )
        return self._add_servers(list(added.values()))

    def _add_servers(self, servers: Sequence[pb.Server]) -> list[int]:
        if not servers:
            return []
        self.views.clear()
        first = len(self.servers)
        for number, server in enumerate(servers, first):
            self._numbers[server.name] = number
            self.tree.add(server.name, server.switch, server.nic_bps)
        self.servers += servers
        switches = [each.switch for each in servers]
        self.gpus.add([each.gpus for each in servers], [each.gpu_memory_mb for each in servers], switches)
        self.cpu_slots.add([each.cpu_slots for each in servers], [0] * len(servers), switches)
        return list(range(first, len(self.servers)))

    def servers_named(self, names: Iterable[str], field: str) -> list[int]:
        """The numbers of servers, and of those below switches of these names. Raises `RequestError`: unknown."""
        found: dict[int, None] = {}
        for place, name in enumerate(names):
            if name in self._numbers:
                below = [self._numbers[name]]
            else:
                below = [
                    number
                    for each, number in self._numbers.items()
                    if self.tree.lies_above(name, self.servers[number].switch)
                ]
            if not below:
                raise RequestError(
                    ErrorCode.UNKNOWN,
                    f"{field}[{place}]",
                    f"expected a known server, or a switch with servers, got {name!r}",
                )
            found.update(dict.fromkeys(below))
        return list(found)

    def take_out_of_use(self, number: int, why: OutOfUse | None) -> None:
        """Place no jobs on a server from now on; with None, place jobs there again."""
        for pool in (self.gpus, self.cpu_slots):
            pool.open(number) if why is None else pool.close(number)
        if why is None:
            self.out_of_use.pop(number, None)
        else:
            self.out_of_use[number] = why

    def use_outside(self, number: int, count: int) -> None:
        """Withhold `count` free slots of a server, GPUs if it has any: programs outside the service use as many."""
        pool = self.gpus if self.servers[number].gpus else self.cpu_slots
        pool.use_outside(number, count)

    def check_removable(self, number: int, field: str) -> None:
        """Raise `RequestError` if a job runs on a server, or waits and names it."""
        name = self.servers[number].name
        for job in self.unended.values():
            runs = job.placed and number in self.pool(job).by_server(job.slots)
            if runs or name in job.spec.servers:
                how = "runs there" if runs else "names it"
                raise RequestError(
                    ErrorCode.STATE, field, f"expected a server without jobs, got {name!r}: {job.id} {how}"
                )

    def remove_server(self, number: int, why: OutOfUse) -> None:
        """Forget a server; its number stays, so that those of others do."""
        self.take_out_of_use(number, why)
        self.gpus.remove(number)
        self.cpu_slots.remove(number)
        name = self.servers[number].name
        del self._numbers[name]
        self.tree.remove(name)
        self.views.clear()

    def servers_in_cluster(self) -> Iterator[tuple[int, pb.Server]]:
        """The servers with their numbers, without those that were removed."""
        for number, server in enumerate(self.servers):
            if number not in self.out_of_use or self.out_of_use[number].state != pb.REMOVED:
                yield number, server

    def add_links(self, links: Sequence[pb.Link]) -> list[int]:
        """Register uplinks, and return the numbers of the new ones.

        Raises:
            RequestError: an uplink is invalid, is registered with other content, has an unknown switch at its lower
                end, or would close a loop.
        """
        known = {link.switch: link for link in self.links}
        switches = self.tree.switches | {link.above for link in links}
        added: dict[str, pb.Link] = {}
        for position, link in enumerate(links):
            field = f"links[{position}]"
            check_link(link, field)
            before = known.get(link.switch) or added.get(link.switch)
            if before is not None:
                _check_same(before, link, field)
                continue
            if link.switch not in switches or link.switch in self._numbers:
                raise RequestError(
                    ErrorCode.UNKNOWN, f"{field}.switch", f"expected a known switch, got {link.switch!r}"
                )
            if link.above in self._numbers:
                raise invalid(f"{field}.above", f"expected a switch, got the server {link.above!r}")
            added[link.switch] = link
            if _closes_loop(link.switch, {**known, **added}):
                raise invalid(
                    f"{field}.above",
                    f"expected a switch that is not below {link.switch!r}, got {link.above!r}",
                )
        return self._add_links(list(added.values()))

    def _add_links(self, links: Sequence[pb.Link]) -> list[int]:
        self.views.clear()
        first = len(self.links)
        for link in links:
            self.tree.add(link.switch, link.above, link.capacity_bps)
        self.links += links
        return list(range(first, len(self.links)))

    def server_number(self, name: str, field: str) -> int:
        """The number of a server; raises `RequestError` if the name is unknown."""
        if name not in self._numbers:
            raise RequestError(ErrorCode.UNKNOWN, field, f"expected a known server, got {name!r}")
        return self._numbers[name]

    def number_of(self, name: str) -> int | None:
        """The number of a server; None: there is none of that name."""
        return self._numbers.get(name)

    def capacity_bps(self, link: str, field: str) -> int:
        """The capacity of a link; raises `RequestError` if the name is unknown."""
        if link not in self.tree.links:
            raise RequestError(ErrorCode.UNKNOWN, field, f"expected a known link, got {link!r}")
        return self.tree.links[link].capacity_bps

    # --------------------------------------------------------------------------------------------------- the jobs

    def job(self, job_id: str, field: str = "job_id") -> JobRecord:
        """The record of a job; raises `RequestError` if the id is unknown."""
        if job_id not in self.jobs:
            check_name(job_id, field)
            raise RequestError(ErrorCode.UNKNOWN, field, f"expected a known job, got {job_id!r}")
        return self.jobs[job_id]

    def add_job(self, job: JobRecord) -> None:
        """Register a validated job, and add it to the waiting queue if it is QUEUED."""
        self._put(job)
        self.next_job_number = max(self.next_job_number, job.number + 1)
        if job.state == pb.QUEUED:
            self.waiting.add(job, self.resource_class(job))

    def _put(self, job: JobRecord) -> None:
        before = self.jobs.get(job.id)
        self.jobs[job.id] = job
        mine = self._unended_of.setdefault(job.owner, set())
        if not job.over:
            self.unended[job.id] = job
            mine.add(job.id)
            return
        self.unended.pop(job.id, None)
        mine.discard(job.id)
        if not mine:
            del self._unended_of[job.owner]
        if before is None or not before.over:
            heappush(self._over, (job.ended_ns, job.number, job.id))

    def unended_of(self, owner: str) -> int:
        """The number of jobs of an owner that are not over."""
        return len(self._unended_of.get(owner, ()))

    def forget(self, most: int, before_ns: int) -> list[JobRecord]:
        """Remove jobs that are over: those that ended before a time, and the oldest beyond `most`; returns them."""
        forgotten = []
        while self._over and (len(self._over) > most or self._over[0][0] < before_ns):
            forgotten.append(self.jobs.pop(heappop(self._over)[2]))
        return forgotten

    def update(self, job: JobRecord) -> None:
        """Replace the record of a job by one with the same slots and links; its remaining work may be another."""
        before = self.jobs[job.id]
        if job.id in self.waiting and before.service_ns != job.service_ns:
            self.waiting.remove(job.id)
            self.waiting.add(job, self.resource_class(job))
        if job.placed and before.work_ns != job.work_ns:
            self.pool(job).worked(job.slots, before.work_ns - job.work_ns)
        self._put(job)

    def place(self, job: JobRecord, slots: Sequence[int], links: Sequence[str], now_ns: int) -> JobRecord:
        """Assign slots and links to a job, and return its new record."""
        self.waiting.remove(job.id)
        self.pool(job).occupy(slots, self.slot_request(job), job.work_ns)
        placed = replace(
            job, state=pb.PLACED, slots=tuple(slots), links=tuple(links), placed_ns=now_ns, reason=""
        )
        self._put(placed)
        self._use(placed)
        return placed

    def place_again(self, job: JobRecord, slots: Sequence[int]) -> None:
        """Restore a placed job with the slots that it had before the service was restarted."""
        self.pool(job).occupy(slots, self.slot_request(job), job.work_ns)
        self.next_job_number = max(self.next_job_number, job.number + 1)
        placed = replace(job, slots=tuple(slots), links=self.links_of(job, slots))
        self._put(placed)
        self._use(placed)

    def end(self, job: JobRecord, state: int, reason: str, now_ns: int) -> JobRecord:
        """End a job: free its slots and links, and return its final record."""
        self.waiting.remove(job.id)
        if job.placed:
            self._free(job)
        ended = replace(job, state=state, reason=reason, ended_ns=now_ns, shift_ns=None, turn="", agent=False)
        self._put(ended)
        return ended

    def requeue(self, job: JobRecord, reason: str, done: int) -> JobRecord:
        """Free the slots and links of a placed job, which waits again, and return its new record.

        Args:
            job: placed.
            reason: why it waits.
            done: the iterations that it has done.
        """
        self._free(job)
        queued = replace(
            job,
            state=pb.QUEUED,
            reason=reason,
            placed_ns=0,
            slots=(),
            links=(),
            shift_ns=None,
            turn="",
            agent=False,
            engine="",
            traffic_class=None,
            done=done,
            restarts=job.restarts + 1,
        )
        self.add_job(queued)
        return queued

    def progress(self, job: JobRecord, done: int) -> JobRecord:
        """Record the number of finished iterations of a placed job, and return its new record."""
        further = replace(job, done=max(job.done, done))
        self.update(further)
        return further

    def relink(self) -> Iterator[tuple[JobRecord, JobRecord]]:
        """Recompute the links of placed jobs after uplinks were added; yields the jobs before and after a change."""
        for job in list(self.unended.values()):
            if job.placed and (links := self.links_of(job, job.slots)) != job.links:
                for link in job.links:
                    self.jobs_of[link].pop(job.id, None)
                changed = replace(job, links=links)
                self._put(changed)
                self._use(changed)
                yield job, changed

    def _free(self, job: JobRecord) -> None:
        self.pool(job).release(job.slots, self.slot_request(job), job.work_ns)
        for link in job.links:
            self.jobs_of[link].pop(job.id, None)

    def _use(self, job: JobRecord) -> None:
        for link in job.links:
            self.jobs_of.setdefault(link, {})[job.id] = None

    # --------------------------------------------------------------------------------------------- slots and links

    def pool(self, job: JobRecord) -> SlotPool:
        """The pool of GPUs or of CPU slots, whichever the job needs."""
        return self.gpus if job.spec.gpus else self.cpu_slots

    def slot_request(self, job: JobRecord) -> SlotRequest:
        """The request of a job to its pool."""
        spec = job.spec
        servers = frozenset(self._numbers[name] for name in spec.servers) if spec.servers else None
        memory_mb = spec.memory_mb if spec.gpus else 0
        return SlotRequest(job.count, memory_mb, spec.shares_gpus, servers, spec.slots_per_server)

    def resource_class(self, job: JobRecord) -> ResourceClass:
        """The resource class of a job."""
        return ResourceClass(bool(job.spec.gpus), self.slot_request(job))

    def links_of(self, job: JobRecord, slots: Sequence[int]) -> tuple[str, ...]:
        """The links that the traffic of a job with these slots uses."""
        numbers = dict.fromkeys(self.pool(job).gpus["server"][list(slots)].tolist())
        return self.tree.between(self.servers[number].name for number in numbers)

    def places(self, job: JobRecord, slots: Sequence[int] | None = None) -> list[pb.ServerSlots]:
        """The slots of a job, or the given ones, grouped by server."""
        by_server = self.pool(job).by_server(job.slots if slots is None else slots)
        return [
            pb.ServerSlots(server=self.servers[number].name, slots=numbers)
            for number, numbers in by_server.items()
        ]

    def slots(self, job: JobRecord, places: Iterable[pb.ServerSlots]) -> tuple[int, ...]:
        """The numbers of the slots of these places, the inverse of `places`."""
        pool = self.pool(job)
        return tuple(pool.number(self._numbers[each.server], slot) for each in places for slot in each.slots)

    # --------------------------------------------------------------------------------------------- shared links

    def coordinated(self, job_id: str) -> bool:
        """Whether a job takes part in time shifts: it was placed with Cassini and has a profile."""
        job = self.jobs[job_id]
        return job.placed and split_cassini(job.policy)[1] and job.demand is not None

    def traffic_around(self, links: Iterable[str]) -> dict[str, list[str]]:
        """The coordinated jobs of each link that is connected with the given ones.

        Two links are connected if a coordinated job uses both, or if a chain of such jobs leads from one to the other.
        """
        found: dict[str, list[str]] = {}
        ahead = list(dict.fromkeys(links))
        while ahead:
            link = ahead.pop()
            if link in found:
                continue
            found[link] = [each for each in self.jobs_of.get(link, ()) if self.coordinated(each)]
            ahead += [other for each in found[link] for other in self.jobs[each].links if other not in found]
        return found

    def capacities_bps(self, links: Iterable[str]) -> dict[str, int]:
        """The capacity of each of these links."""
        return {link: self.tree.links[link].capacity_bps for link in links}

    def _known_server(self, name: str) -> pb.Server | None:
        return self.servers[self._numbers[name]] if name in self._numbers else None


def _check_same(known: pb.Server | pb.Link, given: pb.Server | pb.Link, field: str) -> None:
    if known == given:
        return
    for name in known.DESCRIPTOR.fields_by_name:
        if getattr(known, name) != getattr(given, name):
            raise RequestError(
                ErrorCode.EXISTS,
                f"{field}.{name}",
                f"expected {getattr(known, name)!r}, as registered before, got {getattr(given, name)!r}",
            )


def _closes_loop(switch: str, links: Mapping[str, pb.Link]) -> bool:
    above = links[switch].above
    while above in links and above != switch:
        above = links[above].above
    return above == switch
