"""Pools of GPUs or CPU slots, stored as the records that the compiled placement policies read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from placement.model.state import GPU, JOB, SERVER, WORKER, Occupancy, Records
from placement.policies.placing import choose

UNACCOUNTED_MB = 1 << 40
"""The memory of a slot whose memory is not accounted."""

_TAKEN = -1


@dataclass(frozen=True)
class SlotRequest:
    """A request for slots of a pool.

    Attributes:
        count: number of slots.
        memory_mb: memory needed on each slot.
        shares: whether other sharing jobs may use the slots at the same time.
        servers: numbers of the servers to choose from; None: all.
        per_server: number of slots on every server that has any, of which `count` is a multiple; 0: as the policy
            chooses.
    """

    count: int
    memory_mb: int = 0
    shares: bool = False
    servers: frozenset[int] | None = None
    per_server: int = 0


@dataclass(frozen=True)
class Holder:
    """A job that holds slots of a pool.

    Attributes:
        slots: their numbers in the pool.
        left_ns: the time for which it has them yet.
    """

    slots: tuple[int, ...]
    left_ns: int


class Neighbours(NamedTuple):
    """Who is on the slots of a pool, as `Occupancy` has it; the first job is the one that asks."""

    jobs: Records
    workers: Records
    hosted: np.ndarray


class SlotPool:
    """All slots of one kind, numbered by server in the order in which the servers were added."""

    def __init__(self) -> None:
        self.gpus: Records = np.zeros(0, GPU)
        self.servers: Records = np.zeros(0, SERVER)
        self.capacity_mb = np.zeros(0, np.int64)
        self._racks: dict[str, int] = {}
        self._shared = 0
        self._closed = np.zeros(0, bool)
        self._used_outside: dict[int, int] = {}
        self._outside = np.zeros(0, bool)

    def add(self, counts: Sequence[int], memories_mb: Sequence[int], switches: Sequence[str] = ()) -> None:
        """Add servers.

        Args:
            counts: of each, its number of slots (0 for none of this kind).
            memories_mb: the memory of a slot.
            switches: the name of its switch; empty: all have one switch.
        """
        first, known = len(self.gpus), len(self.servers)
        servers = np.zeros(len(counts), SERVER)
        servers["gpus"] = counts
        servers["rack"] = [self._racks.setdefault(name, len(self._racks)) for name in switches] or 0
        servers["first_gpu"] = first + np.concatenate(([0], np.cumsum(counts)[:-1]))
        gpus = np.zeros(sum(counts), GPU)
        gpus["server"] = np.repeat(np.arange(known, known + len(counts)), counts)
        capacity = np.repeat(np.array([each or UNACCOUNTED_MB for each in memories_mb], np.int64), counts)
        gpus["memory_left"] = capacity
        self.gpus = np.concatenate((self.gpus, gpus))
        self.servers = np.concatenate((self.servers, servers))
        self.capacity_mb = np.concatenate((self.capacity_mb, capacity))
        self._closed = np.concatenate((self._closed, np.zeros(len(gpus), bool)))
        self._outside = np.concatenate((self._outside, np.zeros(len(gpus), bool)))

    def close(self, server: int) -> None:
        """Give no further slots of a server."""
        self._closed[self._slots_of(server)] = True

    def open(self, server: int) -> None:
        """Give slots of a server again."""
        self._closed[self._slots_of(server)] = False

    def remove(self, server: int) -> None:
        """Close a server for good: it satisfies no request any more, not even in an empty cluster."""
        self.close(server)
        self.capacity_mb[self._slots_of(server)] = _TAKEN

    def use_outside(self, server: int, count: int) -> None:
        """Withhold `count` of the free slots of a server: users outside of the pool hold as many.

        Which ones is not known, and may be chosen anew whenever slots are taken or freed.
        """
        self._used_outside[server] = count
        self._mark_outside([server])

    def is_open(self, slot: int) -> bool:
        """Whether a slot may be given to a job, as far as its server and users outside are concerned."""
        return not (self._closed[slot] or self._outside[slot])

    @property
    def all_open(self) -> bool:
        """Whether no server is closed, and no slot used outside."""
        return not (self._closed.any() or self._outside.any())

    @property
    def free(self) -> int:
        """Number of slots that no job holds, and nobody outside."""
        return int(np.count_nonzero((self.gpus["workers"] == 0) & ~self._outside))

    def counts(self) -> dict[str, int]:
        """Number of slots that jobs hold, that are free, used outside, or on closed servers; without removed ones."""
        there = self.capacity_mb != _TAKEN
        held = self.gpus["workers"] > 0
        outside = ~held & self._outside
        closed = ~held & ~outside & self._closed
        kinds = {"held": held, "free": ~(held | outside | closed), "outside": outside, "out_of_use": closed}
        return {name: int(np.count_nonzero(kind & there)) for name, kind in kinds.items()}

    def free_of(self, server: int) -> int:
        """Number of slots of a server that no job holds, and nobody outside."""
        own = self._slots_of(server)
        return int(np.count_nonzero((self.gpus["workers"][own] == 0) & ~self._outside[own]))

    def capable(self, request: SlotRequest) -> int:
        """Number of slots that satisfy the request in an empty cluster."""
        return self._count(self._allowed(request) & (self.capacity_mb >= request.memory_mb), request)

    def available(self, request: SlotRequest) -> int:
        """Number of slots that satisfy the request at present."""
        return self._count(self._view(request)["memory_left"] >= request.memory_mb, request)

    def out_of_use(self, request: SlotRequest) -> int:
        """Number of slots that would satisfy the request if their servers were not closed."""
        large = self.capacity_mb >= request.memory_mb
        return self._count(
            self._closed & large & self._allowed(request) & (self.gpus["workers"] == 0), request
        )

    def used_outside(self, request: SlotRequest) -> int:
        """Number of slots that would satisfy the request if nobody outside used them."""
        return self._count(
            self._outside & ~self._closed & self._allowed(request) & (self.capacity_mb >= request.memory_mb),
            request,
        )

    def suits(self, slots: Sequence[int], request: SlotRequest) -> bool:
        """Whether these slots satisfy the request at present."""
        alike = {len(own) for own in self.by_server(slots).values()} <= {request.per_server}
        usable = self._view(request)["memory_left"][list(slots)] >= request.memory_mb
        return bool(usable.all()) and (alike or not request.per_server)

    def largest_mb(self, request: SlotRequest) -> int:
        """The memory of the largest slot on the servers of the request; 0 if they have none."""
        allowed = self.capacity_mb[self._allowed(request)]
        return int(allowed.max()) if len(allowed) else 0

    def choose(
        self,
        rule: int,
        kappa: int,
        request: SlotRequest,
        first_server: int = 0,
        left_ns: int = 0,
        neighbours: Neighbours | None = None,
    ) -> tuple[int, ...] | None:
        """The slots that a compiled policy chooses; None if too few satisfy the request.

        Args:
            rule: the policy's number in `catalogue.PLACEMENT_RULES`.
            kappa: K of LWF-K.
            request: the slots needed.
            first_server: the policy sees the servers in an order rotated to begin with this one; among equally good
                servers it takes the first.
            left_ns: the time for which the job itself will have them. This and the next are for the rules in
                `catalogue.SEE_NEIGHBOURS`.
            neighbours: of all jobs that hold slots.
        """
        view = self._view(request)
        shown, own = view, request
        if request.per_server:
            shown = self._first_usable(view, request)
            own = replace(request, count=request.count // request.per_server)
        jobs, workers, hosted = neighbours or self.neighbours(())
        jobs[0]["gpus"], jobs[0]["memory"], jobs[0]["compute"] = own.count, own.memory_mb, left_ns
        chosen = np.zeros(own.count, np.int64)
        gpus, servers, begin = shown, self.servers, 0
        if first_server:
            begin = int(servers["first_gpu"][first_server])
            gpus, servers = _turned(gpus, servers, first_server, begin)
            hosted = np.roll(hosted, -begin, axis=0)
        if not choose(rule, kappa, Occupancy(jobs, gpus, servers, hosted, workers), 0, chosen):
            return None
        slots = tuple(sorted(int(slot + begin) % len(gpus) for slot in chosen))
        return self._whole(slots, view, request) if request.per_server else slots

    def neighbours(self, holders: Sequence[Holder]) -> Neighbours:
        """The records of the jobs that hold slots, for `choose`, for as long as they hold them."""
        jobs = np.zeros(1 + len(holders), JOB)
        workers = np.zeros(len(jobs), WORKER)
        workers["job"] = np.arange(len(jobs))
        jobs["iterations_left"] = 1
        hosted = np.zeros((len(self.gpus), max(1, int(self.gpus["workers"].max(initial=0)))), np.int64)
        count = np.zeros(len(self.gpus), np.int64)
        for number, holder in enumerate(holders, 1):
            slots = list(holder.slots)
            jobs[number]["compute"] = holder.left_ns
            servers = np.unique(self.gpus["server"][slots])
            racks = len(np.unique(self.servers["rack"][servers]))
            jobs[number]["servers"] = len(servers)
            jobs[number]["places"] = len(servers) + (racks if racks > 1 else 0) if len(servers) > 1 else 0
            hosted[slots, count[slots]] = number
            count[slots] += 1
        return Neighbours(jobs, workers, hosted)

    def _first_usable(self, view: Records, request: SlotRequest) -> Records:
        """The records in which every server with enough usable slots has one, and the others have none."""
        usable = np.flatnonzero(view["memory_left"] >= request.memory_mb)
        _, first, counts = np.unique(view["server"][usable], return_index=True, return_counts=True)
        shown = np.zeros(len(view), bool)
        shown[usable[first[counts >= request.per_server]]] = True
        found = view.copy()
        found["memory_left"][~shown] = _TAKEN
        return found

    def _whole(self, blocks: Sequence[int], view: Records, request: SlotRequest) -> tuple[int, ...]:
        """The slots of which `_first_usable` showed the first: on each server those with the least work."""
        found: list[int] = []
        for slot in blocks:
            own = np.arange(len(view))[self._slots_of(int(view["server"][slot]))]
            usable = own[view["memory_left"][own] >= request.memory_mb]
            ordered = usable[np.argsort(view["workload"][usable], kind="stable")]
            found += ordered[: request.per_server].tolist()
        return tuple(sorted(found))

    def occupy(self, slots: Sequence[int], request: SlotRequest, work_ns: int) -> None:
        """Assign slots to a job with `work_ns` of work on each."""
        chosen = list(slots)
        self.gpus["workers"][chosen] += 1
        self.gpus["workload"][chosen] += work_ns
        if request.shares:
            self.gpus["memory_left"][chosen] -= request.memory_mb
            self._shared += len(chosen)
        else:
            self.gpus["memory_left"][chosen] = _TAKEN
        self._mark_outside(self._used_outside)

    def release(self, slots: Sequence[int], request: SlotRequest, work_ns: int) -> None:
        """Free slots of a job with `work_ns` of work left on each; the inverse of `occupy`."""
        chosen = list(slots)
        self.gpus["workers"][chosen] -= 1
        self.gpus["workload"][chosen] -= work_ns
        if request.shares:
            self.gpus["memory_left"][chosen] += request.memory_mb
            self._shared -= len(chosen)
        else:
            self.gpus["memory_left"][chosen] = self.capacity_mb[chosen]
        self._mark_outside(self._used_outside)

    def worked(self, slots: Sequence[int], work_ns: int) -> None:
        """Subtract finished work from each of a job's slots."""
        self.gpus["workload"][list(slots)] -= work_ns

    def by_server(self, slots: Sequence[int]) -> dict[int, list[int]]:
        """The slots by server, numbered within the server."""
        found: dict[int, list[int]] = {}
        for slot in slots:
            server = int(self.gpus["server"][slot])
            found.setdefault(server, []).append(slot - int(self.servers["first_gpu"][server]))
        return found

    def number(self, server: int, slot: int) -> int:
        """The pool-wide number of a slot that is numbered within its server."""
        return int(self.servers["first_gpu"][server]) + slot

    def _mark_outside(self, servers: Iterable[int]) -> None:
        for server in servers:
            own, count = self._slots_of(server), self._used_outside[server]
            free = np.flatnonzero(self.gpus["workers"][own] == 0)
            self._outside[own] = False
            self._outside[own.start + free[max(0, len(free) - count) :]] = True

    def _slots_of(self, server: int) -> slice:
        first = int(self.servers["first_gpu"][server])
        return slice(first, first + int(self.servers["gpus"][server]))

    def _count(self, usable: np.ndarray, request: SlotRequest) -> int:
        """The number of usable slots, or of those on servers with enough of them."""
        if not request.per_server:
            return int(np.count_nonzero(usable))
        counts = np.bincount(self.gpus["server"][usable], minlength=len(self.servers))
        return request.per_server * int(np.count_nonzero(counts >= request.per_server))

    def _allowed(self, request: SlotRequest) -> np.ndarray:
        if request.servers is None:
            return np.ones(len(self.gpus), bool)
        return np.isin(self.gpus["server"], sorted(request.servers))

    def _view(self, request: SlotRequest) -> Records:
        """The records with unusable slots marked as having no memory left."""
        hidden = self._shared and not request.shares
        if not hidden and request.servers is None and self.all_open:
            return self.gpus
        view = self.gpus.copy()
        view["memory_left"][self._closed | self._outside | ~self._allowed(request)] = _TAKEN
        if hidden:
            view["memory_left"][view["workers"] > 0] = _TAKEN
        return view


def _turned(gpus: Records, servers: Records, first_server: int, begin: int) -> tuple[Records, Records]:
    """The records rotated so that `first_server`, whose first slot is `begin`, comes first."""
    turned_gpus = np.concatenate((gpus[begin:], gpus[:begin]))
    turned_gpus["server"] = (turned_gpus["server"] - first_server) % len(servers)
    turned = np.concatenate((servers[first_server:], servers[:first_server]))
    turned["first_gpu"] = (turned["first_gpu"] - begin) % max(1, len(gpus))
    _, first, racks = np.unique(turned["rack"], return_index=True, return_inverse=True)
    turned["rack"] = np.argsort(np.argsort(first))[racks]  # by where they occur first
    return turned_gpus, turned
