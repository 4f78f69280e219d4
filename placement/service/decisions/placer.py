"""Places what waits, as soon as it fits; one job after the other, and one decision at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache

from placement.service.context import Live
from placement.service.decisions.cassini_request import question_of_present
from placement.service.decisions.decision import answer, carry_out, decide, shift, unshift_alone
from placement.service.decisions.policy import Policy, policy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import Kind, Refused
from placement.service.state.capacity import no_room
from placement.service.state.job import Job, Shape

policy_named = lru_cache(maxsize=64)(policy)

_WAITING = (pb.REGISTERED, pb.QUEUED)


class Placer:
    """The only one that gives slots to jobs.

    Args:
        live: the state.
        on_placed: called with each job that was placed.
    """

    def __init__(self, live: Live, on_placed: Callable[[Job], None]) -> None:
        self._live = live
        self._on_placed = on_placed
        self._deciding = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._full: set[Shape] = set()

    def more_jobs(self) -> None:
        """A job has come: look whether it fits."""
        self._wanted.set()

    def more_room(self) -> None:
        """Slots have become free, or known: look again for all that wait."""
        self._full.clear()
        self._wanted.set()

    def policy_of(self, job: Job, asked: str = "") -> Policy:
        """The policy that a job is to be placed by: the one asked for now, its own, or the service's."""
        return policy_named(asked or job.spec.policy or self._live.rules.policy)

    async def place_waiting(self) -> None:
        """Place jobs for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._place_all()

    async def place(self, job_id: str, asked: str) -> None:
        """Place a job now.

        Raises:
            Refused: there is no room for it, the policy cannot place it, or it does not wait any more.
        """
        async with self._deciding:
            job = self._live.registry.jobs[job_id]
            if not await self._try(job, self.policy_of(job, asked)):
                raise no_room(self._live.registry, job)

    async def shift_anew(self, links: tuple[str, ...]) -> None:
        """Work out the time shifts of the jobs around these links again: one of them is not what it was."""
        async with self._deciding:
            asked = question_of_present(self._live.registry, links)
            if asked is not None:
                choice = await answer(asked)
                now_ns = self._live.clock.now_ns()
                self._live.save(shift(self._live.registry, asked.demands, choice, now_ns))
            self.unshift_alone(links)

    def unshift_alone(self, links: tuple[str, ...]) -> None:
        """Take the time shifts of jobs that are alone on these links now."""
        self._live.save(unshift_alone(self._live.registry, links))

    async def _place_all(self) -> None:
        while (job := self._next()) is not None:
            async with self._deciding:
                await self._try_waiting(job.id)
            await asyncio.sleep(0)

    def _next(self) -> Job | None:
        registry = self._live.registry
        for job_id, shape in registry.waiting.heads():
            if shape not in self._full:
                return registry.jobs[job_id]
        return None

    async def _try_waiting(self, job_id: str) -> None:
        job = self._live.registry.jobs[job_id]
        if job.state != pb.QUEUED:
            return
        try:
            placed = await self._try(job, self.policy_of(job))
        except Refused:
            placed = False  # it waits until something changes; Explain tells what for
        if not placed:
            self._full.add(self._live.registry.shape(job))

    async def _try(self, job: Job, chosen: Policy) -> bool:
        live = self._live
        decision = await decide(live.registry, job, chosen, live.clock.now_ns())
        if decision is None:
            return False
        now = live.registry.jobs[job.id]
        if now.state not in _WAITING:
            raise Refused(Kind.STATE, "job_id", f"is {job.id!r}, which was released meanwhile")
        changed = carry_out(live.registry, decision, live.clock.now_ns())
        live.save(changed)
        live.remember(changed[0], decision.explanation)
        self._on_placed(changed[0])
        return True
