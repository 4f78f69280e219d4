"""Changes of the cluster: servers and links that are registered, and servers that are taken out of use and into it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from mltcp.core.one_line import one_line
from placement.engines.engine import HostBack, HostOut, HostUsed
from placement.service.context import ServiceContext
from placement.service.decisions.dispatcher import Dispatcher
from placement.service.engine_jobs import EngineJobs
from placement.service.lifecycle import JobLifecycle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import RequestError, check_text, invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.persistence import save_link, save_server, save_server_state
from placement.service.state.registry import OutOfUse
from placement.service.state.store import StoreUnwritableError

ENGINE_SAYS = "engine: "
"""The beginning of the reason for which the engine, and no operator, took a server out of use."""

_log = logging.getLogger("mltcp.placement")


class ClusterChanges:
    """Changes of the servers and links of one service.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        engine_jobs: the jobs that an engine runs.
        dispatcher: decides anew when slots are added.
    """

    def __init__(
        self,
        context: ServiceContext,
        lifecycle: JobLifecycle,
        engine_jobs: EngineJobs,
        dispatcher: Dispatcher,
    ) -> None:
        self._context, self._registry, self._lifecycle = context, context.registry, lifecycle
        self._engine_jobs, self._dispatcher = engine_jobs, dispatcher
        lifecycle.subscribe(self._job_changed)

    async def register_servers(self, servers: Sequence[pb.Server]) -> int:
        """Register servers, and return the number of new ones. Raises `RequestError`."""
        if {each.name for each in servers} - {each.name for each in self._registry.servers}:
            self._context.check_accepts("servers")
        added = self._registry.add_servers(servers)
        for number in added:
            save_server(self._context.store, number, self._registry.servers[number])
        if added:
            self._dispatcher.capacity_changed("servers were added")
        await self._context.store.committed()
        return len(added)

    async def register_links(self, links: Sequence[pb.Link]) -> int:
        """Register uplinks, and return the number of new ones. Raises `RequestError`."""
        if {each.switch for each in links} - {each.switch for each in self._registry.links}:
            self._context.check_accepts("links")
        added = self._registry.add_links(links)
        for number in added:
            save_link(self._context.store, number, self._registry.links[number])
        if added:
            self._lifecycle.relink()
        await self._context.store.committed()
        return len(added)

    async def change_servers(self, names: Sequence[str], state: pb.ServerState, reason: str) -> int:
        """Take servers out of use or into use again, and return the number of those changed. Raises `RequestError`."""
        if state not in (pb.IN_USE, pb.DRAINING, pb.UNHEALTHY, pb.REMOVED):
            raise invalid("state", f"expected IN_USE, DRAINING, UNHEALTHY or REMOVED, got {state}")
        check_text(reason, "reason")
        registry, why = self._registry, None if state == pb.IN_USE else OutOfUse(state, reason)
        numbers = [
            each for each in registry.servers_named(names, "names") if registry.out_of_use.get(each) != why
        ]
        if state == pb.REMOVED:
            for number in numbers:
                registry.check_removable(number, "names")
        for number in numbers:
            if why is not None and state == pb.REMOVED:
                registry.remove_server(number, why)
            else:
                registry.take_out_of_use(number, why)
            save_server_state(self._context.store, number, why)
        if numbers:
            self._dispatcher.capacity_changed("servers were changed")
        await self._context.store.committed()
        await self._leave_unhealthy()
        return len(numbers)

    def host_changed(self, event: HostOut | HostBack | HostUsed) -> None:
        """Act on what the engine's workload manager says of a host."""
        number = self._registry.number_of(event.host)
        if number is None:
            return
        why = self._registry.out_of_use.get(number)
        if isinstance(event, HostUsed):
            self._registry.use_outside(number, event.slots)
            self._dispatcher.capacity_changed(f"{event.host}: {event.slots} slots are used by others")
        elif isinstance(event, HostOut):
            if why is None:  # an operator's reason stays
                _log.info("server %s: %s", one_line(event.host), one_line(event.why))
                self._context.begin(self._change(event.host, pb.UNHEALTHY, f"{ENGINE_SAYS}{event.why}"))
        elif why is not None and why.reason.startswith(ENGINE_SAYS):
            _log.info("server %s: in use again", one_line(event.host))
            self._context.begin(self._change(event.host, pb.IN_USE, ""))

    async def _change(self, host: str, state: pb.ServerState, reason: str) -> None:
        # It may have been removed meanwhile, or the change is in memory only.
        with suppress(RequestError, StoreUnwritableError):
            await self.change_servers([host], state, reason)

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        """A job that has been started may be on a server that became unhealthy meanwhile."""
        started = job.placed and job.engine and before is not None and not before.engine
        if started and self._registry.out_of_use:
            self._context.begin(self._leave_unhealthy())

    async def _leave_unhealthy(self) -> None:
        """Stop the elastic jobs that an engine runs on unhealthy servers, to go on elsewhere."""
        out_of_use = self._registry.out_of_use.items()
        unhealthy = {number: why.reason for number, why in out_of_use if why.state == pb.UNHEALTHY}
        if not unhealthy:
            return
        for job in list(self._registry.unended.values()):
            there = self._registry.pool(job).by_server(job.slots) if job.placed else {}
            number = next((each for each in there if each in unhealthy), None)
            if number is None:
                continue
            name, reason = self._registry.servers[number].name, unhealthy[number] or "no reason given"
            # One that is not elastic goes on there, and one that is being started is stopped once it runs.
            with suppress(RequestError):
                await self._engine_jobs.requeue(job, f"{name} is unhealthy: {reason}")
